"""A reward function whose values suddenly are much larger or smaller."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Floats, columns_of
from rollout_plugins.checks.windows import spell

#: How many generations the two sides of the comparison have, and how many values that are not 0.
_BEFORE, _AFTER, _FEWEST = 8, 2, 16
#: By how much both the largest and the typical value must have changed.
_RATIO = 2.4


class RewardsScale(Check):
    """A reward function changed its scale from one step to the next, for example from 0-1 to 0-100.

    A judge that was updated, another prompt for it, or a normalisation that was lost. Advantages are divided by the
    group's spread, so the loss hardly shows it, but this function now outweighs its siblings.
    """

    name = "rewards-scale"
    needs = ("rewards",)
    columns = ("rewards",)
    advice = "Compare the function's output on a rollout from before and one from after; then fix its scale."

    def begin(self) -> None:
        self._values: dict[str, deque[tuple[int, Floats]]] = {}

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        for name, values in columns.rewards.items():
            sizes = np.abs(values[np.isfinite(values)])
            sizes = sizes[sizes > 0]
            if not len(sizes):
                continue
            window = self._values.setdefault(name, deque(maxlen=_BEFORE + _AFTER))
            window.append((step, sizes))
            if len(window) < _BEFORE + _AFTER:
                continue
            before = np.concatenate([sizes for _, sizes in list(window)[:_BEFORE]])
            after = np.concatenate([sizes for _, sizes in list(window)[_BEFORE:]])
            if min(len(before), len(after)) < _FEWEST:
                continue
            typical = float(np.median(after) / np.median(before))
            largest = float(after.max() / before.max())
            if min(typical, largest) > _RATIO or max(typical, largest) < 1 / _RATIO:
                since = window[_BEFORE][0]
                yield self.finding(
                    f"{name} changed its scale",
                    f"{name}: typical size {spell(float(np.median(before)))} → {spell(float(np.median(after)))}, "
                    f"largest "
                    f"{spell(float(before.max()))} → {spell(float(after.max()))}, from step {since}",
                    steps=(since, step),
                    rollouts=columns.ids(np.isfinite(values)),
                )
