"""Reward functions that return None, or rollouts that no function scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Flags, columns_of

#: From how many rollouts on a function that scored none of them is reported.
_ENOUGH = 64


class RewardsMissing(Check):
    """A reward function returned None: for every rollout, or for rollouts that no other function scored either.

    A function that scores only some tasks returns None for the others, which is fine as long as another function
    scores them. A rollout without any reward teaches nothing, and a function that never scores is usually one that
    looks for a column or a format that is not there.
    """

    name = "rewards-missing"
    needs = ("rewards",)
    columns = ("rewards",)
    advice = "Call the reward function on one of these rollouts, and see why it returns None."

    def begin(self) -> None:
        self._seen: Counter[str] = Counter()
        self._given: Counter[str] = Counter()
        self._unscored = self._scorable = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        is_scored: Flags = np.zeros(columns.count, bool)
        for name, (_, is_given) in columns.given_rewards.items():
            is_scored |= is_given
            self._seen[name] += columns.count
            self._given[name] += int(is_given.sum())
            if self._seen[name] >= _ENOUGH and not self._given[name]:
                yield self.finding(
                    f"{name} returns None",
                    f"{name}: None for all {self._seen[name]} rollouts, until step {step}",
                    steps=(step,),
                    rollouts=columns.ids(~is_given),
                )
        self._scorable += columns.count
        self._unscored += int((~is_scored).sum())
        if self._unscored >= max(4, 0.05 * self._scorable) and not is_scored.all():
            yield self.finding(
                "rollouts without a reward",
                f"{self._unscored} of {self._scorable} rollouts got None from every reward function, until step "
                f"{step}",
                steps=(step,),
                rollouts=columns.ids(~is_scored),
            )
