"""Decide which rollouts count as a pass: their value in a column reaches a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollout_plugins.errors import RunError, need, suggest

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

#: Rewards are kept as the functions gave them, but a trainer adds them up with 32 bits.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Criterion:
    """What counts as a pass."""

    column: str
    """The column that holds the values: `reward`, `reward/correct` or `judge.score`."""
    bound: float | None
    """The least value that passes; None if the values are neither 0 nor 1, and no bound was given."""
    lowest: float | None = None
    """The lowest finite value."""
    highest: float | None = None
    """The highest finite value."""

    def __str__(self) -> str:
        if self.bound is not None:
            return f"a pass is {self.column} >= {self.bound:g}"
        if self.lowest is None or self.highest is None:
            return f"{self.column} has no values, so there are no passes"
        return f"{self.column} runs from {self.lowest:g} to {self.highest:g}; say what counts as a pass with --pass-at"


def criterion(column: str, values: pa.ChunkedArray | pa.Array, pass_at: float | None = None) -> Criterion:
    """Return what counts as a pass: `pass_at`, or a value of 1 where all values are 0 or 1."""
    np: Any = need("numpy")
    known = np.asarray(values.drop_null(), dtype=float)
    known = known[np.isfinite(known)]
    bound = pass_at
    if bound is None and known.size and np.isin(known, (0.0, 1.0)).all():
        bound = 1.0
    ends = (float(known.min()), float(known.max())) if known.size else (None, None)
    return Criterion(column, bound, *ends)


def passes(values: pa.ChunkedArray | pa.Array, bound: float) -> pa.Array:
    """Return whether each value is a pass; null where there is no value, or where it is NaN or infinite."""
    np: Any = need("numpy")
    known = np.asarray(values.fill_null(float("nan")), dtype=float)
    return pa.array(known >= bound - _ROUNDING * max(1.0, abs(bound)), mask=~np.isfinite(known))


def find_column(runs: Sequence[StoredRun], by: str) -> str:
    """Return the column that `by` stands for in all of the runs: a reward function, a total or an annotation."""
    for run in runs:
        columns = run.columns
        if by not in columns and f"reward/{by}" not in columns:
            numbers = [name for name in columns if name == "reward" or name.startswith("reward/") or "." in name]
            raise RunError(f"{run.place} has no column {by!r} to judge by; {suggest(by, numbers)}")
    return by if all(by in run.columns for run in runs) else f"reward/{by}"
