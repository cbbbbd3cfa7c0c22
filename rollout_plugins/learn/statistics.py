"""Intervals and tests that respect how rollouts come about: several answers to each prompt."""

from __future__ import annotations

from math import comb
from typing import Any, NamedTuple

from rollout_plugins.errors import need

#: The normal quantile of a 95 % interval.
Z95 = 1.959964
RESAMPLES = 2000
#: Random numbers that are drawn at once, so that many prompts do not take much memory.
_DRAWS = 4_000_000


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(passed: Any, attempts: Any) -> tuple[Any, Any]:
    """Return the ends of Wilson's 95 % interval of a pass rate; NaN without attempts. Takes numbers or arrays."""
    np: Any = need("numpy")
    passed, attempts = np.asarray(passed, dtype=float), np.asarray(attempts, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate, square = passed / attempts, Z95**2
        middle = (rate + square / (2 * attempts)) / (1 + square / attempts)
        spread = np.sqrt(rate * (1 - rate) / attempts + square / (4 * attempts**2)) / (1 + square / attempts)
        spread *= Z95
    return np.clip(middle - spread, 0.0, 1.0), np.clip(middle + spread, 0.0, 1.0)


def clustered_rate(passed: Any, clusters: Any) -> Interval:
    """Return a rate with Wilson's interval, widened for answers to the same prompt, which are alike.

    The number of attempts is divided by the design effect: the variance between prompts over that of independent
    answers.
    """
    np: Any = need("numpy")
    passed = np.asarray(passed, dtype=float)
    if not passed.size:
        return Interval(float("nan"), float("nan"), float("nan"))
    _, codes = np.unique(np.asarray(clusters), return_inverse=True)
    rate, attempts, prompts = passed.mean(), passed.size, codes.max() + 1
    effect = 1.0
    if 0 < rate < 1 and prompts > 1:
        residuals = np.bincount(codes, weights=passed - rate)
        variance = prompts / (prompts - 1) * (residuals**2).sum() / attempts**2
        effect = max(1.0, variance / (rate * (1 - rate) / attempts))
    low, high = wilson(rate * attempts / effect, attempts / effect)
    return Interval(float(rate), float(low), float(high))


def bootstrap_mean(values: Any, *, seed: int = 0) -> Interval:
    """Return the mean of one value for each prompt, with the interval of a bootstrap that draws prompts."""
    np: Any = need("numpy")
    values = np.asarray(values, dtype=float)
    mean = float(values.mean()) if values.size else float("nan")
    if values.size < 2 or np.ptp(values) == 0:
        return Interval(mean, mean, mean)
    generator = np.random.default_rng(seed)
    at_once = max(1, _DRAWS // values.size)
    means = [
        values[generator.integers(0, values.size, (min(at_once, RESAMPLES - start), values.size))].mean(axis=1)
        for start in range(0, RESAMPLES, at_once)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Interval(mean, float(low), float(high))


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: how likely so uneven a split is, if nothing changed."""
    changed = gained + lost
    if not changed:
        return 1.0
    tail = sum(comb(changed, number) for number in range(min(gained, lost) + 1))
    return min(1.0, float(2 * tail / 2**changed))
