"""The numbers of one generation that a rule may be about, each computed from the columns of the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Compute = Callable[[pa.Table], "float | None"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a generation."""

    compute: Compute
    columns: tuple[str, ...]
    """The columns it needs."""
    where: str = ""
    """A SQL condition for the rollouts that show it; empty if all of them do."""


def _mean(column: str) -> Compute:
    return lambda table: _finite(pc.mean(_finite_values(table[column])).as_py())


def _share(column: str, value: str) -> Compute:
    return lambda table: (pc.sum(pc.equal(table[column], value)).as_py() or 0) / table.num_rows


def _finite_values(values: Any) -> Any:
    floats = pc.cast(values, pa.float64())
    return floats.filter(pc.fill_null(pc.is_finite(floats), False))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _reward_std(table: pa.Table) -> float | None:
    rewards = _finite_values(table["reward"])
    return _finite(pc.stddev(rewards).as_py()) if len(rewards) > 1 else None


def _no_spread(table: pa.Table) -> float | None:
    """Return the share of groups of several rollouts whose rewards are all equal."""
    groups: dict[Any, list[float]] = {}
    for group, reward in zip(table["group"].to_pylist(), table["reward"].to_pylist(), strict=True):
        if reward is not None and math.isfinite(reward):
            groups.setdefault(group, []).append(reward)
    several = [rewards for rewards in groups.values() if len(rewards) > 1]
    return sum(max(rewards) - min(rewards) < 1e-12 for rewards in several) / len(several) if several else None


def _not_finite(table: pa.Table) -> float:
    rewards = table["rewards"].combine_chunks()
    values = pc.struct_field(rewards.flatten(), "value")
    rows = pc.list_parent_indices(rewards).filter(pc.fill_null(pc.invert(pc.is_finite(values)), False))
    return float(len(pc.unique(rows)) / table.num_rows)


def _failed_calls(table: pa.Table) -> float | None:
    calls, failed = (pc.sum(table[name]).as_py() or 0 for name in ("calls", "failed_calls"))
    return failed / calls if calls else None


def _answers(table: pa.Table) -> list[str]:
    """Return what the model wrote in each rollout."""
    return [
        "\n".join(message["content"] or "" for message in messages if message["role"] == "assistant")
        for messages in table["completion"].to_pylist()
    ]


def _empty(table: pa.Table) -> float:
    calls = table["calls"].to_pylist()
    empty = sum(not answer.strip() and not n for answer, n in zip(_answers(table), calls, strict=True))
    return float(empty / table.num_rows)


def _duplicated(table: pa.Table) -> float:
    return float(1 - len(set(_answers(table))) / table.num_rows)


def _errors(table: pa.Table) -> float:
    return float(1 - table["error"].null_count / table.num_rows)


NUMBERS: Mapping[str, Number] = {
    "reward": Number(_mean("reward"), ("reward",)),
    "reward_std": Number(_reward_std, ("reward",)),
    "not_finite": Number(_not_finite, ("rewards",), "not isfinite(reward)"),
    "no_spread": Number(_no_spread, ("group", "reward")),
    "truncated": Number(_share("finish", "length"), ("finish",), "finish = 'length'"),
    "errors": Number(_errors, ("error",), "error is not null"),
    "empty": Number(_empty, ("completion", "calls")),
    "duplicated": Number(_duplicated, ("completion",)),
    "tokens": Number(_mean("completion_tokens"), ("completion_tokens",)),
    "turns": Number(_mean("turns"), ("turns",)),
    "calls": Number(_mean("calls"), ("calls",)),
    "failed_calls": Number(_failed_calls, ("calls", "failed_calls"), "failed_calls > 0"),
}
"""The numbers by name; shares are between 0 and 1."""


def reward_number(name: str) -> Number:
    """Return the mean of one reward function."""

    def compute(table: pa.Table) -> float | None:
        pairs = table["rewards"].combine_chunks().flatten()
        values = pc.struct_field(pairs, "value").filter(pc.equal(pc.struct_field(pairs, "name"), name))
        return _finite(pc.mean(_finite_values(values)).as_py())

    return Number(compute, ("rewards",))
