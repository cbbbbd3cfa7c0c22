"""Groups whose rollouts all have the same reward."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding, Severity

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of

#: How many groups the window has, and which share of flat ones is worth a word.
_GROUPS, _SOME, _MANY, _NEARLY_ALL = 40, 0.5, 0.65, 0.95
#: A larger group is suggested up to this size, if it leaves at most this share of groups flat.
_LARGEST, _GOOD = 16, 0.3


class GroupsFlat(Check):
    """All rollouts of a group have the same reward, so the group's advantages are 0 and it teaches nothing.

    Some flat groups are expected: with a pass rate p and groups of G, a share of p^G + (1-p)^G. Above that, prompts
    are too easy or too hard for every attempt. Where a larger G would help, the finding names it.
    """

    name = "groups-flat"
    needs = ("rewards", "groups")
    columns = ()
    advice = "Leave out prompts that nobody or everybody solves; or raise num_generations."

    def begin(self) -> None:
        self._window: deque[tuple[int, int, int, int, int, int]] = deque()
        self._lowest, self._highest = np.inf, -np.inf

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        spread = columns.group_spread
        is_known = np.isfinite(spread)
        if not is_known.any():
            return
        self.observe(columns.count)
        is_flat = is_known & (spread < 1e-9)
        values = columns.reward[np.isfinite(columns.reward)]
        self._lowest, self._highest = min(self._lowest, values.min()), max(self._highest, values.max())
        high = int((values > (self._lowest + self._highest) / 2).sum()) if self._highest > self._lowest else 0
        size = int(np.median(columns.group_sizes[is_known]))
        self._window.append((step, int(is_flat.sum()), int(is_known.sum()), high, len(values), size))
        while sum(row[2] for row in self._window) - self._window[0][2] >= _GROUPS and len(self._window) > 5:
            self._window.popleft()
        if finding := self._judge(step, columns.ids(is_flat[columns.groups])):
            yield finding

    def _judge(self, step: int, evidence: tuple[str, ...]) -> Finding | None:
        since = self._window[0][0]
        flat, groups, high, rollouts, size = (sum(row[at] for row in self._window) for at in (1, 2, 3, 4, 5))
        share, size = flat / groups, round(size / len(self._window))
        if groups < _GROUPS or len(self._window) < 5 or share < _SOME:
            return None
        rate = high / rollouts
        expected = flat_share(rate, size)
        helpful = next((g for g in range(size + 1, _LARGEST + 1) if flat_share(rate, g) <= _GOOD), None)
        explained = share <= expected + 3 * np.sqrt(expected * (1 - expected) / groups) + 0.05
        severity: Severity = (
            "warning" if share >= _NEARLY_ALL or (helpful and explained and share >= _MANY) else "info"
        )
        text = f"{share:.0%} of {groups} groups have no spread, steps {since} to {step}"
        if self._highest > self._lowest:
            text += f"; a pass rate of {rate:.2f} and groups of {size} predict {expected:.0%}"
        if helpful and explained:
            text += f"; groups of {helpful} would have {flat_share(rate, helpful):.0%}"
        title = "nearly all groups are flat" if share >= _NEARLY_ALL else "many groups are flat"
        return self.finding(title, text, severity, steps=(since, step), rollouts=evidence)


def flat_share(rate: float, size: int) -> float:
    """Return the share of groups of a size in which all pass or all fail, at a pass rate."""
    return float(rate**size + (1 - rate) ** size)
