"""Reward functions that return None, or rollouts that no function scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Flags, columns_of
from rollout_plugins.checks.windows import Share

#: From how many rollouts on a function that scored none of them is reported.
_ENOUGH = 64
#: Which share of rollouts without any reward is reported.
_SHARE = 0.05


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
        self._unscored = Share(chances=64, generations=2)

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
        self._unscored.add(step, int((~is_scored).sum()), columns.count)
        share = self._unscored
        if not is_scored.all() and share.share >= _SHARE and share.events >= 4:
            yield self.finding(
                "rollouts without a reward",
                f"{share.events} of {share.chances} rollouts got None from every reward function, steps {share.since} "
                f"to {step}",
                steps=(share.since, step),
                rollouts=columns.ids(~is_scored),
            )
