"""The same answer to different prompts, or to all attempts at one prompt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import GenerationColumns, Integers, columns_of, text_of
from rollout_plugins.checks.windows import Share

#: Shorter answers are the same by chance, such as "yes" or "42".
_SHORTEST = 32
_ACROSS, _WITHIN = 0.3, 0.8


class AnswersDuplicate(Check):
    """Different prompts get the same answer, or all rollouts of a group are the same.

    Across prompts: the policy has collapsed to one answer, or the prompt does not reach the model. Within groups:
    sampling is off (temperature 0, a fixed seed for every request, a cache), so no group has any spread.
    """

    name = "answers-duplicate"
    needs = ()
    columns = ("completion",)
    advice = "Compare the prompts of these rollouts; check temperature, seed and cache of the sampler."

    def begin(self) -> None:
        self._across = Share(chances=48, generations=2)
        self._within = Share(chances=12, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        is_long = columns.answer_sizes >= _SHORTEST
        _, places = np.unique(columns.completion.hashes, return_inverse=True)
        yield from self._look_across(columns, places, is_long, step)
        yield from self._look_within(columns, places, is_long, step)

    def _look_across(
        self, columns: GenerationColumns, places: Integers, is_long: Integers, step: int
    ) -> Iterator[Finding]:
        # A text is shared by prompts if it stands in more than one group.
        pairs = np.unique(places * len(columns.group_sizes) + columns.groups)
        in_groups = np.bincount(pairs // len(columns.group_sizes), minlength=places.max() + 1)
        is_shared = (in_groups[places] > 1) & is_long
        if len(columns.group_sizes) < 2:
            return
        self._across.add(step, int(is_shared.sum()), columns.count)
        if is_shared.any() and self._across.share >= _ACROSS:
            example = int(np.flatnonzero(is_shared)[0])
            yield self.finding(
                "different prompts get the same answer",
                f"{self._across.events} of {self._across.chances} rollouts answer as another prompt's do, steps "
                f"{self._across.since} to {step}, such as {text_of(columns.heads[example], 50)!r}",
                "severe" if self._across.share > 0.8 else "warning",
                steps=(self._across.since, step),
                rollouts=columns.ids(places == places[example]),
            )

    def _look_within(
        self, columns: GenerationColumns, places: Integers, is_long: Integers, step: int
    ) -> Iterator[Finding]:
        is_large = columns.group_sizes > 1
        differs = np.bincount(columns.groups, (places != places[columns.group_starts][columns.groups]) | ~is_long) > 0
        self._within.add(step, int((is_large & ~differs).sum()), int(is_large.sum()))
        if self._within.share >= _WITHIN:
            yield self.finding(
                "all answers of a group are the same",
                f"in {self._within.events} of {self._within.chances} groups all answers are identical, steps "
                f"{self._within.since} to {step}",
                "severe",
                steps=(self._within.since, step),
                rollouts=columns.ids((is_large & ~differs)[columns.groups]),
            )
