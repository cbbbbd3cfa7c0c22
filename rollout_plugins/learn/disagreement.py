"""Compare the old and the new scores of a run: where they agree, and what would have been learnt otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollout_plugins.errors import need
from rollout_plugins.learn.rescore import Rescored
from rollout_plugins.learn.statistics import Interval, clustered_rate

#: Advantages below this are 0: what is left of equal rewards after rounding.
_ZERO = 1e-6


@dataclass(frozen=True, slots=True)
class Verifiers:
    """How often the old verifier errs, if the new one is right; 95 % intervals over prompts."""

    false_negatives: Interval
    """Share of the answers that the new verifier passes which the old one failed."""
    false_positives: Interval
    """Share of the answers that the new verifier fails which the old one passed."""
    right: int
    """Answers that the new verifier passes."""
    wrong: int
    """Answers that the new verifier fails."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How the new scores differ from those that the run was trained with."""

    scored: int
    """Rollouts with an old and a new score."""
    failed: int
    """Rollouts for which the function raised, or gave something else than a number."""
    unscored: int
    """Rollouts for which it gave None, or that have no text."""
    old_mean: float
    new_mean: float
    same_sign: float
    """Share of rollouts whose advantage keeps its sign, 0 being a sign of its own."""
    rose: int
    """Advantages that were negative and are positive now."""
    fell: int
    """Advantages that were positive and are negative now."""
    groups: int
    """Groups with at least two rollouts that have both scores."""
    best_changed: int
    """Groups with spread in both in which none of the best answers is still a best one."""
    keep_spread: int
    lose_spread: int
    gain_spread: int
    without_spread: int
    correlation: float | None
    """Mean rank correlation (Kendall's tau-b) within the groups with spread in both; None without such groups."""
    verifiers: Verifiers | None
    """Where both scores are 0 or 1 throughout."""
    largest: Sequence[dict[str, Any]]
    """The rollouts whose advantage changed most, one for each prompt."""


def disagreement(found: Rescored, limit: int = 10) -> Disagreement:
    """Return how the new scores differ from the old ones, with the `limit` largest disagreements."""
    np: Any = need("numpy")
    table = found.table
    old, new, old_gain, new_gain = (
        _numbers(table[name]) for name in ("old_value", "value", "old_advantage", "new_advantage")
    )
    both = ~np.isnan(old) & ~np.isnan(new)
    old_sign, new_sign = _signs(old_gain[both]), _signs(new_gain[both])
    old_total, new_total = _numbers(table["old_reward"]), _numbers(table["new_reward"])
    errors = table["error"]
    failed = len(errors) - errors.null_count
    return Disagreement(
        scored=int(both.sum()),
        failed=failed,
        unscored=int(np.isnan(new).sum()) - failed,
        old_mean=_mean(old[both]),
        new_mean=_mean(new[both]),
        same_sign=_mean(old_sign == new_sign),
        rose=int(((old_sign < 0) & (new_sign > 0)).sum()),
        fell=int(((old_sign > 0) & (new_sign < 0)).sum()),
        **_groups(table["group"].to_numpy()[both], old_total[both], new_total[both]),
        verifiers=_verifiers(old[both], new[both], np.asarray(table["prompt_id"])[both]),
        largest=_largest(table.filter(pa.array(both)), limit),
    )


def _groups(groups: Any, old: Any, new: Any) -> dict[str, Any]:
    """Compare the totals within each group."""
    np: Any = need("numpy")
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    counts = dict.fromkeys(("keep_spread", "lose_spread", "gain_spread", "without_spread", "best_changed"), 0)
    correlations = []
    names = {
        (True, True): "keep_spread", (True, False): "lose_spread", (False, True): "gain_spread",
        (False, False): "without_spread",
    }  # fmt: skip
    several = [rows for rows in np.split(order, cuts) if len(rows) > 1]
    for rows in several:
        before, after = old[rows], new[rows]
        spread = bool(np.ptp(before) > _ZERO), bool(np.ptp(after) > _ZERO)
        counts[names[spread]] += 1
        if all(spread):
            counts["best_changed"] += not (_best(before) & _best(after)).any()
            correlations.append(_tau(before, after))
    correlation = float(np.mean(correlations)) if correlations else None
    return {"groups": len(several), "correlation": correlation, **counts}


def _best(values: Any) -> Any:
    return values >= values.max() - _ZERO


def _tau(before: Any, after: Any) -> float:
    """Return Kendall's tau-b: 1 for the same order, -1 for the reverse."""
    np: Any = need("numpy")
    first = np.sign(before[:, None] - before[None, :])
    second = np.sign(after[:, None] - after[None, :])
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def _verifiers(old: Any, new: Any, prompts: Any) -> Verifiers | None:
    np: Any = need("numpy")
    if not old.size or not np.isin(old, (0, 1)).all() or not np.isin(new, (0, 1)).all():
        return None
    right, wrong = new == 1, new == 0
    return Verifiers(
        false_negatives=clustered_rate(old[right] == 0, prompts[right]),
        false_positives=clustered_rate(old[wrong] == 1, prompts[wrong]),
        right=int(right.sum()),
        wrong=int(wrong.sum()),
    )


def _largest(table: pa.Table, limit: int) -> list[dict[str, Any]]:
    """Return the rollouts whose advantage changed most: one for each prompt, so that they show different things."""
    np: Any = need("numpy")
    change = np.abs(_numbers(table["new_advantage"]) - _numbers(table["old_advantage"]))
    prompts = table["prompt_id"].to_pylist()
    chosen: dict[str, int] = {}
    for row in np.argsort(-change, kind="stable"):
        if change[row] <= _ZERO or len(chosen) == limit:
            break
        chosen.setdefault(prompts[row], int(row))
    return list(table.take(pa.array(chosen.values(), pa.int64())).to_pylist())


def _numbers(column: pa.ChunkedArray) -> Any:
    np: Any = need("numpy")
    return np.asarray(column.fill_null(float("nan")).to_numpy(), dtype=float)


def _signs(values: Any) -> Any:
    np: Any = need("numpy")
    return np.where(np.abs(values) <= _ZERO, 0, np.sign(values))


def _mean(values: Any) -> float:
    return float(values.mean()) if values.size else float("nan")
