"""Groups that hold rollouts of different prompts, or of different rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Flags, GenerationColumns, Integers, columns_of
from rollout_plugins.checks.windows import Share

_SHARE = 0.03
_TITLES = {
    "groups mix different prompts": "groups hold rollouts of different prompts",
    "groups mix different rows": "groups hold rollouts of different rows of the dataset, under equal prompts",
    "groups are incomplete": "groups have fewer or more rollouts than their group size says",
}


class GroupsMixed(Check):
    """Rollouts of one group answer different prompts, or belong to different rows of the dataset, or some are missing.

    The advantage compares a rollout with its group. If groups are interleaved by the sampler, merged because their
    prompts have equal tokens, or split by a filter, it compares answers to different questions: the training looks
    normal and learns noise.
    """

    name = "groups-mixed"
    needs = ("groups",)
    columns = ("prompt", "columns")
    advice = "Keep each prompt's rollouts next to each other, in the order in which the trainer expects them."

    def begin(self) -> None:
        self._prompts = Share(chances=12, generations=2)
        self._rows = Share(chances=12, generations=2)
        self._sizes = Share(chances=24, generations=4)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        # A recorder may record each turn of an episode as a rollout; their prompts grow and are not compared.
        turns = np.diff(columns.prompt.starts)
        is_comparable = ~_differs(columns, turns)
        differing = _differs(columns, columns.prompt.hashes) & is_comparable
        yield from self._report(
            self._prompts,
            columns,
            differing,
            step,
            "groups mix different prompts",
        )
        rows = columns.array("columns")
        if rows.null_count < len(rows) and not differing.any():
            places = rows.fill_null("").dictionary_encode().indices.to_numpy(zero_copy_only=False)
            yield from self._report(
                self._rows,
                columns,
                _differs(columns, places) & is_comparable,
                step,
                "groups mix different rows",
            )
        if self.run.world_size == 1 and "Async" not in self.run.trainer:
            declared = np.asarray(columns.array("group_size"))[columns.group_starts]
            yield from self._report(
                self._sizes,
                columns,
                columns.group_sizes != declared,
                step,
                "groups are incomplete",
            )

    def _report(
        self, share: Share, columns: GenerationColumns, is_bad: Flags, step: int, title: str
    ) -> Iterator[Finding]:
        share.add(step, int(is_bad.sum()), len(is_bad))
        if is_bad.any() and share.share >= _SHARE and share.events >= 2:
            yield self.finding(
                title,
                f"{share.events} of {share.chances} {_TITLES[title]}, steps {share.since} to {step}",
                "severe",
                steps=(share.since, step),
                rollouts=columns.ids(is_bad[columns.groups]),
            )


def _differs(columns: GenerationColumns, values: Integers) -> Flags:
    """Return for each group whether its rollouts differ in a value."""
    is_odd = values != values[columns.group_starts][columns.groups]
    return np.bincount(columns.groups, is_odd) > 0
