"""Calculate statistics for which any value that is not a finite number counts as missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rollout_plugins.content.numbers import finite


def numbers(values: Iterable[Any]) -> list[float]:
    return [converted for value in values if (converted := finite(value)) is not None]


def mean(values: Sequence[float]) -> float | None:
    return _finite(math.fsum(v / len(values) for v in values)) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Return the population standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = math.fsum(v / len(values) for v in values)
    return _finite(math.hypot(*(v - centre for v in values)) / math.sqrt(len(values)))


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation; None if one side does not vary."""
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    if len(pairs) < 3 or min(left) == max(left) or min(right) == max(right):
        return None
    left, right = _centred(left), _centred(right)
    across, down = math.hypot(*left), math.hypot(*right)
    if not across or not down or not math.isfinite(across) or not math.isfinite(down):
        return None
    return _finite(math.fsum((a / across) * (b / down) for a, b in zip(left, right, strict=True)))


def quantile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest of the values with at least this share of the values at or below it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _centred(values: Sequence[float]) -> list[float]:
    centre = math.fsum(v / len(values) for v in values)
    return [v - centre for v in values]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
