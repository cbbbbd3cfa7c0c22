"""Rewards that are always at their highest value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share, spell

#: What share of rollouts must have the highest reward, among how many.
_SHARE, _ROLLOUTS = 0.97, 160


class RewardsCeiling(Check):
    """Nearly every rollout has the highest reward there is, so there is nothing left to learn, or nothing is tested.

    At the start of a training this mostly means that the reward does not test what it should: a gold answer that
    cannot be parsed and counts as solved, a test that is never run, an answer that stands in the prompt. Later it can
    simply mean that the task is learned, and is reported as information.
    """

    name = "rewards-ceiling"
    needs = ("rewards",)
    columns = ()
    advice = "Read three of these rollouts: if the answers are wrong, fix the reward; if right, use harder prompts."

    def begin(self) -> None:
        self._share = Share(_ROLLOUTS, 3)
        self._highest = -np.inf
        self._was_lower = self._total = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        values = columns.reward[np.isfinite(columns.reward)]
        self.observe(len(values))
        if not len(values):
            return
        if values.max() > self._highest:
            self._highest = float(values.max())
            self._share = Share(_ROLLOUTS, 3)
        at_ceiling = int((values >= self._highest - 1e-9).sum())
        self._share.add(step, at_ceiling, len(values))
        self._was_lower += len(values) - at_ceiling
        self._total += len(values)
        if self._share.share < _SHARE or self._highest <= 0:
            return
        always = self._was_lower <= 0.05 * self._total
        yield self.finding(
            "reward at its ceiling",
            f"{self._share.share:.0%} of the latest {self._share.chances} rollouts have the highest reward, "
            f"{spell(self._highest)}, since step {self._share.since}" + (", and so from the start" if always else ""),
            "warning" if always else "info",
            steps=(self._share.since, step),
            rollouts=columns.ids(columns.reward >= self._highest - 1e-9),
        )
