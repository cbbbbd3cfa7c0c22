"""Detect rewards that depend on the length of an answer instead of its content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Window

#: How many groups with both spreads the window has, and which correlation within them is reported.
_GROUPS, _STRONG = 24, 0.65


class RewardFollowsLength(Check):
    """Within a group, the length of an answer explains most of its reward.

    A judge that likes long answers, a reward per sentence, or answers that the limit cuts off before they are scored.
    The model then learns to be long (or short). A reward that is meant to shape the length is reported too: disable
    the check for such a run.
    """

    name = "reward-follows-length"
    needs = ("rewards", "groups")
    columns = ("completion", "completion_tokens")
    advice = "Compare a long and a short answer of one group; reward the content, or subtract what length explains."

    def begin(self) -> None:
        self._window: deque[tuple[int, int, float, float, float]] = deque()
        self._lengths = Window()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        self._lengths.add(step, columns, columns.lengths)
        reward, length = columns.less_group_mean(columns.reward), columns.less_group_mean(columns.lengths)
        is_known = np.isfinite(reward) & np.isfinite(length)
        reward, length = np.where(is_known, reward, 0.0), np.where(is_known, length, 0.0)
        squares = [np.bincount(columns.groups, values**2) for values in (reward, length)]
        is_mixed = (squares[0] > 1e-12) & (squares[1] > 1e-9)
        if not is_mixed.any():
            return
        # Each group counts alike: its two series are scaled to one.
        scale = np.sqrt(squares[0] * squares[1])
        products = np.bincount(columns.groups, reward * length)[is_mixed] / scale[is_mixed]
        self._window.append((step, len(products), float(products.sum()), float((products**2).sum()), 0.0))
        while sum(row[1] for row in self._window) - self._window[0][1] >= _GROUPS and len(self._window) > 4:
            self._window.popleft()
        groups, total, total_squares = (sum(row[at] for row in self._window) for at in (1, 2, 3))
        if groups < _GROUPS or len(self._window) < 4:
            return
        mean = total / groups
        error = np.sqrt(max(total_squares / groups - mean**2, 1e-4) / groups)
        if abs(mean) < _STRONG or abs(mean) < 5 * error:
            return
        change = self._lengths.change()
        trend = f"; mean length {change.before:.0f} → {change.after:.0f}" if change else ""
        order = np.argsort(-np.abs(length))
        yield self.finding(
            "reward follows length",
            f"{'longer' if mean > 0 else 'shorter'} answers get more reward: correlation {mean:.2f} within {groups} "
            f"groups, "
            f"steps {self._window[0][0]} to {step}{trend}",
            steps=(self._window[0][0], step),
            rollouts=columns.ids(order),
        )
