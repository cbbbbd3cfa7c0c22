"""Rewards that belong to the neighbouring row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Floats, columns_of

#: How many rollouts must have been seen, and how much larger the correlation with one neighbour than with the other
#: must be: in a healthy run both are the same.
_ROLLOUTS, _GAP, _SURE = 96, 0.2, 6.0
#: How much the earlier generations still count.
_FADING = 0.85
_LAGS = (-1, 0, 1)
_LENGTH = "the length of the answers"


class RewardsShifted(Check):
    """The scores of one reward function belong to other rollouts: they fit the siblings' scores one row further.

    Scores come back from a server or a thread pool in another order, or one was left out in front. Each function
    alone looks healthy; only the comparison within a group shows that they do not describe the same rollout.
    """

    name = "rewards-shifted"
    needs = ("several_rewards", "groups")
    columns = ("rewards", "completion", "completion_tokens")
    advice = "Return the scores in the order of the completions; check how results of parallel calls are put in order."

    def begin(self) -> None:
        self._sums: dict[tuple[str, str], Floats] = {}
        self._rollouts = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        if columns.count < 4:
            return
        self.observe(columns.count)
        self._rollouts += columns.count
        series = {name: columns.less_group_mean(values) for name, values in columns.rewards.items()}
        series[_LENGTH] = columns.less_group_mean(columns.lengths)
        series = {name: _scaled(values) for name, values in series.items()}
        for first, second in combinations(series, 2):
            products = [float((np.roll(series[first], lag) * series[second]).sum()) for lag in _LAGS]
            both = float(np.count_nonzero((series[first] != 0) & (series[second] != 0)))
            sums = np.array([*products, both])
            self._sums[first, second] = _FADING * self._sums.get((first, second), np.zeros(4)) + sums
            if self._rollouts >= _ROLLOUTS and (finding := self._judge(first, second, step)):
                yield finding

    def _judge(self, first: str, second: str, step: int) -> Finding | None:
        before, same, after, count = self._sums[first, second]
        if count < _ROLLOUTS / 2:
            return None
        best = max(before, after, key=abs) / count
        difference = abs(after - before) / count
        if difference < _GAP or difference * np.sqrt(count / 2) < _SURE or abs(best) < _GAP:
            return None
        return self.finding(
            f"{first} is shifted against {second}",
            f"{first} fits {second} of the neighbouring row: correlation {best:.2f}, with its own row "
            f"{same / count:.2f}, within the groups of the latest rollouts until step {step}",
            "severe",
            steps=(step,),
        )


def _scaled(values: Floats) -> Floats:
    """Return values with a spread of 1; zeros where there is none."""
    values = np.where(np.isfinite(values), values, 0.0)
    spread = float(np.sqrt((values**2).mean()))
    return np.clip(values / spread, -4, 4) if spread > 1e-9 else np.zeros(len(values))
