"""Read rewards from any numeric type, and sum them as trainers do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def to_float(value: Any) -> Any:
    """Return a number of any type as a float: Python's, NumPy's, a tensor, a bool.

    Other values are returned unmodified, and the store marks them. Text is not parsed.
    """
    if value is None or isinstance(value, (str, bytes)):
        return value
    try:
        item = getattr(value, "item", None)
        return float(item() if callable(item) else value)
    except (Exception, SystemExit):  # several numbers, or none
        return value


def shortest_float(value: float) -> float:
    """Return the number with the fewest digits that is equal in 32 bits: 52.07 for 52.06999969."""
    import numpy as np

    return float(str(np.float32(value)))


def weighted_sum(rewards: Mapping[str, float | None], weights: Sequence[float]) -> float | None:
    """Return the sum that the trainer uses, which skips None and NaN; None if no function returned a number."""
    terms = [
        value * weight
        for value, weight in zip(rewards.values(), weights, strict=False)
        if value is not None and not math.isnan(value)
    ]
    return sum(terms) if terms else None
