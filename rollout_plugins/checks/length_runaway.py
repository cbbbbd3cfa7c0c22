"""Answers that become much longer or much shorter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import SURE, Window, spell

_LONGER, _SHORTER = 1.8, 0.4


class LengthRunaway(Check):
    """Answers have become twice as long, or less than half as long, and the reward did not rise with it.

    Where the reward rose as well this is information only: reasoning models learn to think longer, and others to stop
    earlier.
    """

    name = "length-runaway"
    needs = ()
    columns = ("completion", "completion_tokens")
    advice = "Read the longest answers; a length penalty, or the loss's normalisation (dr_grpo), stops the growth."

    def begin(self) -> None:
        self._lengths, self._rewards = Window(), Window()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        self._lengths.add(step, columns, columns.lengths)
        self._rewards.add(step, columns, columns.reward)
        change, reward = self._lengths.change(), self._rewards.change()
        if change is None or abs(change.errors) < SURE or change.before <= 0:
            return
        ratio = change.after / change.before
        if _SHORTER < ratio < _LONGER or abs(change.after - change.before) < 12:
            return
        is_paid = reward is not None and reward.errors > 3
        text = f"mean length {change.before:.0f} → {change.after:.0f}, from step {change.since}"
        if reward is not None:
            text += f"; reward {spell(reward.before)} → {spell(reward.after)}"
        longer = ratio > 1
        yield self.finding(
            "answers become longer" if longer else "answers become shorter",
            text,
            "info" if is_paid else "warning",
            steps=(change.since, step),
            rollouts=columns.ids(np.argsort(columns.lengths * (-1 if longer else 1))),
        )
