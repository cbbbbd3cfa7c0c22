"""Rewards that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of


class RewardsNotFinite(Check):
    """A reward function returned NaN or infinity.

    TRL counts a NaN as 0 in the sum, so the loss stays finite and nothing else reports it. An infinite reward makes
    the advantages of its whole group NaN.
    """

    name = "rewards-not-finite"
    needs = ("rewards",)
    columns = ("rewards",)
    advice = "Return None from the reward function where it cannot score, or fix the division that gives NaN."

    def begin(self) -> None:
        self._reported: set[str] = set()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        for name, (values, is_given) in columns.given_rewards.items():
            is_bad = is_given & ~np.isfinite(values)
            if name in self._reported or not is_bad.any():
                continue
            self._reported.add(name)
            kind = "NaN" if np.isnan(values[is_bad][0]) else "infinite"
            yield self.finding(
                f"reward {name} is {kind}",
                f"{name}: {kind} in {is_bad.sum()} of {columns.count} rollouts of {split} step {step}",
                "severe",
                steps=(step,),
                rollouts=columns.ids(is_bad),
            )
