"""Rewards that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import NEEDS, Check
from rollout_plugins.checks.generation_columns import Flags, Floats, columns_of


class RewardsNotFinite(Check):
    """A reward function returned NaN or infinity, or the total reward is NaN or infinite by itself.

    TRL counts a NaN as 0 in the sum, so the loss stays finite and nothing else reports it. An infinite reward makes
    the advantages of its whole group NaN.
    """

    name = "rewards-not-finite"
    columns = ("rewards",)
    advice = "Return None from the reward function where it cannot score, or fix the division that gives NaN."

    def begin(self) -> None:
        self._reported: set[str] = set()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        total = table["reward"]
        has_total = total.is_valid().to_numpy()
        total_is_bad = has_total & ~np.isfinite(total.fill_null(0.0).to_numpy())
        if not has_total.any() and not columns.given_rewards:
            self.why = NEEDS["rewards"]
            return
        self.observe(columns.count)
        bad: dict[str, tuple[Flags, Floats]] = {}
        for name, (values, is_given) in columns.given_rewards.items():
            bad[name] = is_given & ~np.isfinite(values), values
            total_is_bad &= ~bad[name][0]  # the function explains the total
        bad.setdefault("reward", (total_is_bad, total.fill_null(0.0).to_numpy()))
        for name, (is_bad, values) in bad.items():
            if name in self._reported or not is_bad.any():
                continue
            self._reported.add(name)
            kind = "NaN" if np.isnan(values[is_bad][0]) else "infinite"
            yield self.finding(
                f"reward {name} is {kind}" if name != "reward" else f"reward is {kind}",
                f"{name}: {kind} in {is_bad.sum()} of {columns.count} rollouts of {split} step {step}",
                "severe",
                steps=(step,),
                rollouts=columns.ids(is_bad),
            )
