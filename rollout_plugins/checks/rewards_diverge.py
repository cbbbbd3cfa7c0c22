"""A reward that rises while another one falls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import GenerationColumns, columns_of
from rollout_plugins.checks.windows import SURE, Change, Window, spell


class RewardsDiverge(Check):
    """One reward component rises while another one falls: the model trades what you want for what is easier.

    The sum still rises, so the usual chart looks good. This is how most reward hacking shows first: a style, format or
    helpfulness score is bought at the price of correctness.
    """

    name = "rewards-diverge"
    needs = ("several_rewards",)
    columns = ("rewards",)
    advice = "Read rollouts that are high in the one and low in the other; lower the weight of the one that rises."

    def begin(self) -> None:
        self._windows: dict[str, Window] = {}
        self._lowest: dict[str, float] = {}
        self._highest: dict[str, float] = {}

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        for name, values in columns.rewards.items():
            finite = values[np.isfinite(values)]
            if len(finite):
                self._windows.setdefault(name, Window()).add(step, columns, values)
                self._lowest[name] = min(self._lowest.get(name, np.inf), float(finite.min()))
                self._highest[name] = max(self._highest.get(name, -np.inf), float(finite.max()))
        changes = {name: change for name, window in self._windows.items() if (change := window.change())}
        rising = {name: change for name, change in changes.items() if self._moved(name, change) > 0}
        falling = {name: change for name, change in changes.items() if self._moved(name, change) < 0}
        if rising and falling:
            up = max(rising, key=lambda name: rising[name].errors)
            for down, fall in falling.items():
                yield self._report((up, rising[up]), (down, fall), step, columns)

    def _moved(self, name: str, change: Change) -> int:
        """Return 1 for a component that rose, -1 for one that fell, 0 for one that did neither for certain."""
        size = self._highest[name] - self._lowest[name]
        if abs(change.errors) < SURE or size <= 0:
            return 0
        step = abs(change.after - change.before) / size
        if change.errors > 0:
            return int(step > 0.05)
        return -int(step > 0.1 and step > 0.25 * abs(change.before - self._lowest[name]) / size)

    def _report(
        self, rising: tuple[str, Change], falling: tuple[str, Change], step: int, columns: GenerationColumns
    ) -> Finding:
        (up, rise), (down, fall) = rising, falling
        lost = (fall.before - fall.after) / max(fall.before - self._lowest[down], 1e-9)
        order = np.argsort(columns.rewards[down] - columns.rewards[up])
        return self.finding(
            f"{down} falls while {up} rises",
            f"{down} {spell(fall.before)} → {spell(fall.after)} while {up} {spell(rise.before)} → "
            f"{spell(rise.after)}, "
            f"from step {fall.since}",
            "severe" if lost > 0.5 else "warning",
            steps=(fall.since, step),
            rollouts=columns.ids(order),
        )
