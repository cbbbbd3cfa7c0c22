"""Rewards that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check


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
        self.observe(table.num_rows)
        rewards = table["rewards"].combine_chunks()
        names, values = rewards.flatten().field("name"), rewards.flatten().field("value")
        is_bad = pc.fill_null(pc.invert(pc.is_finite(values)), False)
        if not pc.any(is_bad).as_py():
            return
        rows = pc.list_parent_indices(rewards).filter(is_bad).to_pylist()
        for name in dict.fromkeys(names.filter(is_bad).to_pylist()):
            if name in self._reported:
                continue
            self._reported.add(name)
            bad = zip(rows, names.filter(is_bad).to_pylist(), values.filter(is_bad).to_pylist(), strict=True)
            places = [(row, value) for row, own, value in bad if own == name]
            kind = "NaN" if places[0][1] != places[0][1] else "infinite"
            yield self.finding(
                f"reward {name} is {kind}",
                f"{name}: {kind} in {len(places)} of {table.num_rows} rollouts of {split} step {step}",
                "severe",
                steps=(step,),
                rollouts=[table["id"][row].as_py() for row, _ in places[:5]],
            )
