"""Compute rewards and advantages as TRL does: GRPO, Dr. GRPO, GDPO and RLOO.

TRL computes on the training thread with tensors of 32 bits; here the same formulas run over all groups of a run at
once. A value that is None or NaN was not scored: it counts for nothing, and its rollout has the advantage 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_hookspecs import Run

from rollout_plugins.errors import need

_EPSILON = 1e-4


@dataclass(frozen=True, slots=True)
class Formula:
    """How a trainer turns rewards into advantages."""

    name: str = "GRPO"
    """`GRPO`, `GDPO` or `RLOO`."""
    scale: str = "group"
    """GRPO: whose standard deviation divides, `group`, `batch` or `none` (as in Dr. GRPO)."""
    normalize: bool = False
    """RLOO: whether advantages are normalised over the batch."""
    clip: tuple[float, float] | None = None
    """RLOO: bounds of the total reward."""

    def __str__(self) -> str:
        if self.name == "GRPO":
            return f"GRPO with scale_rewards={self.scale!r}"
        return f"RLOO{' with normalize_advantages' if self.normalize else ''}" if self.name == "RLOO" else self.name


def formula_of(run: Run) -> Formula:
    """Return the formula that a run's trainer used, by its class and its settings."""
    settings: Mapping[str, Any] = run.settings
    if "RLOO" in run.trainer:
        clip = settings.get("reward_clip_range")
        bounds = (float(clip[0]), float(clip[1])) if clip else None
        return Formula("RLOO", normalize=bool(settings.get("normalize_advantages")), clip=bounds)
    if settings.get("multi_objective_aggregation") == "normalize_then_sum":
        return Formula("GDPO")
    scale = settings.get("scale_rewards", "group")
    if isinstance(scale, bool):  # what older versions of TRL call them
        scale = "group" if scale else "none"
    return Formula("GRPO", scale=str(scale))


def total_rewards(values: Any, weights: Any) -> Any:
    """Return the weighted sum of each row of `values` (a column for each function); NaN where no function scored."""
    np: Any = need("numpy")
    values = np.asarray(values, dtype=np.float64)
    totals = np.nansum(values * np.asarray(weights, dtype=np.float64), axis=1)
    totals[np.isnan(values).all(axis=1)] = np.nan
    return totals


def advantages(values: Any, weights: Any, groups: Any, batches: Any, formula: Formula) -> Any:
    """Return the advantage of each row.

    `groups` and `batches`: a number for each row, equal for rollouts of one prompt, and of one generation.
    """
    np: Any = need("numpy")
    values = np.asarray(values, dtype=np.float32).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if formula.name == "GDPO":
            scaled = np.column_stack([_scaled(column, groups) for column in values.T])
            found = _scaled(_with_unscored(total_rewards(scaled, weights), values), batches)
        else:
            rewards = total_rewards(values, weights)
            found = _rloo(rewards, groups, batches, formula) if formula.name == "RLOO" else _grpo(
                rewards, groups, batches, formula.scale
            )  # fmt: skip
    largest = float(np.finfo(np.float32).max)
    return np.nan_to_num(found, nan=0.0, posinf=largest, neginf=-largest)


def _grpo(rewards: Any, groups: Any, batches: Any, scale: str) -> Any:
    centred = rewards - _mean(rewards, groups)
    if scale == "none":
        return centred
    return centred / (_std(rewards, batches if scale == "batch" else groups) + _EPSILON)


def _rloo(rewards: Any, groups: Any, batches: Any, formula: Formula) -> Any:
    np: Any = need("numpy")
    if formula.clip is not None:
        rewards = np.clip(rewards, *formula.clip)
    sums, counts = _sums(rewards, groups)
    found = rewards - (sums - rewards) / (counts - 1)  # 0/0 for the only one with a score, which gets 0
    return _scaled(found, batches) if formula.normalize else found


def _with_unscored(totals: Any, values: Any) -> Any:
    """A function's only score in its group has no deviation, so it is NaN there, but the rollout was scored."""
    np: Any = need("numpy")
    return np.where(np.isnan(values).all(axis=1), np.nan, np.nan_to_num(totals, nan=0.0))


def _scaled(values: Any, among: Any) -> Any:
    return (values - _mean(values, among)) / (_std(values, among) + _EPSILON)


def _sums(values: Any, among: Any) -> tuple[Any, Any]:
    """Return the sum and the number of the values that are not NaN, for each row those of its group."""
    np: Any = need("numpy")
    _, codes = np.unique(np.asarray(among), return_inverse=True)
    is_known = ~np.isnan(values)
    sums = np.bincount(codes, weights=np.where(is_known, values, 0.0))
    counts = np.bincount(codes, weights=is_known)
    return sums[codes], counts[codes]


def _mean(values: Any, among: Any) -> Any:
    sums, counts = _sums(values, among)
    return sums / counts


def _std(values: Any, among: Any) -> Any:
    """Return the standard deviation with Bessel's correction; NaN for a single value."""
    np: Any = need("numpy")
    squares, counts = _sums((values - _mean(values, among)) ** 2, among)
    return np.sqrt(squares / np.where(counts > 1, counts - 1, np.nan))
