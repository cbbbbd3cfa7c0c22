"""Reward functions that give everybody the same: from the start, or since some step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Floats, GenerationColumns, columns_of
from rollout_plugins.checks.windows import spell

#: How many rollouts and generations must have the same value before it is called constant.
_ROLLOUTS, _GENERATIONS = 160, 5
#: A function has gone silent if its earlier values make the silence less likely than this (as a logarithm).
_UNLIKELY = np.log(1e-9)


@dataclass
class _History:
    """What one reward function gave so far."""

    value: float = np.nan
    """The value of all rollouts since the function last gave two different ones."""
    rollouts: int = 0
    generations: int = 0
    since: int = 0
    highest: float = -np.inf
    varied: bool = False
    earlier: deque[Floats] = field(default_factory=lambda: deque(maxlen=12))
    """The values of the latest generations that varied."""


class RewardsConstant(Check):
    """A reward function gives every rollout the same value, so it teaches nothing.

    Constant from the start: often a format reward whose pattern never matches, or a judge that answers in a form its
    parser does not know. Silent since some step: the function's server, file or quota is gone and an exception
    handler returns a default. A function at its highest value is reported as information only: that may be learned.
    """

    name = "rewards-constant"
    needs = ("rewards",)
    columns = ("rewards",)
    advice = "Call the reward function by hand on one of these rollouts; look for an exception handler in it."

    def begin(self) -> None:
        self._histories: dict[str, _History] = {}

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        for name, values in columns.rewards.items():
            if finding := self._look_at(name, values[np.isfinite(values)], step, columns):
                yield finding

    def _look_at(self, name: str, values: Floats, step: int, columns: GenerationColumns) -> Finding | None:
        history = self._histories.setdefault(name, _History(since=step))
        if not len(values):
            return None
        low, high = float(values.min()), float(values.max())
        history.highest = max(history.highest, high)
        if low != high or (history.rollouts and low != history.value):
            history.varied |= history.rollouts > 0 or low != high
            history.earlier.append(values)
            history.rollouts, history.generations, history.since = (
                (len(values), 1, step) if low == high else (0, 0, step)
            )
            history.value = low if low == high else np.nan
            return None
        if not history.rollouts:
            history.since = step
        history.value, history.rollouts, history.generations = (
            low,
            history.rollouts + len(values),
            history.generations + 1,
        )
        evidence = columns.ids(np.isfinite(columns.rewards[name]))
        if history.varied:
            return self._silent(name, history, step, evidence)
        if history.rollouts < _ROLLOUTS or history.generations < _GENERATIONS:
            return None
        return self.finding(
            f"{name} is constant",
            f"{name}: {spell(low)} in all {history.rollouts} rollouts, steps {history.since} to {step}",
            "info" if low > 0 else "warning",
            steps=(history.since, step),
            rollouts=evidence,
        )

    def _silent(self, name: str, history: _History, step: int, evidence: tuple[str, ...]) -> Finding | None:
        earlier = np.concatenate(history.earlier)
        share = min((np.count_nonzero(earlier == history.value) + 1) / (len(earlier) + 2), 0.97)
        if len(earlier) < 32 or history.generations < 3 or history.rollouts * np.log(share) > _UNLIKELY:
            return None
        is_highest = history.value >= history.highest
        return self.finding(
            f"{name} went silent",
            f"{name}: {spell(history.value)} in all {history.rollouts} rollouts since step {history.since}; before, "
            f"{share:.0%} had that value and the mean was {spell(float(earlier.mean()))}",
            "info" if is_highest and share > 0.3 else "severe",
            steps=(history.since, step),
            rollouts=evidence,
        )
