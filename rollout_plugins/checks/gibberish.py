"""Answers whose tokens are far less likely than at first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Window

_RISE = 1.0


class Gibberish(Check):
    """The sampler finds its own answers far less likely than at the start: it samples almost evenly from everything.

    The policy has diverged, or the sampler has broken weights. Short answers are looked at as well, since the mean is
    per token.
    """

    name = "gibberish"
    needs = ("logprobs",)
    columns = ()
    advice = "Look at grad_norm and KL at the first of these steps; check that the sampler has the trainer's weights."

    def begin(self) -> None:
        self._window = Window()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        starts, logprobs = columns.tokens("logprobs")
        sizes = np.diff(starts)
        self.observe(columns.count, len(logprobs))
        sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(logprobs, neginf=-50.0))])
        means = np.divide(
            sums[starts[1:]] - sums[starts[:-1]], sizes, out=np.full(len(sizes), np.nan), where=sizes > 0
        )
        self._window.add(step, columns, -means)
        change = self._window.change()
        if change and change.after - change.before > _RISE and change.after > 2 * change.before and change.errors > 6:
            yield self.finding(
                "answers become unlikely",
                f"mean log-probability of a token {-change.before:.2f} → {-change.after:.2f}, from step "
                f"{change.since}",
                "severe",
                steps=(change.since, step),
                rollouts=columns.ids(np.argsort(means)),
            )
