"""Rewards as numbers: read from any kind of number, and added up as trainers do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def to_float(value: Any) -> Any:
    """The float in any kind of number: Python's, NumPy's, a tensor, a flag. Anything else stays for the store to mark.

    Text is not a number here: what it was meant to say is not ours to guess.
    """
    if value is None or isinstance(value, (str, bytes)):
        return value
    try:
        item = getattr(value, "item", None)
        return float(item() if callable(item) else value)
    except (Exception, SystemExit):  # several numbers, or none
        return value


def shortest_float(value: float) -> float:
    """The number with the fewest digits that is this one in 32 bits: 52.07 for 52.06999969."""
    import numpy as np

    return float(str(np.float32(value)))


def weighted_sum(rewards: Mapping[str, float | None], weights: Sequence[float]) -> float | None:
    """The sum the trainer uses: functions that gave nothing (or NaN) don't count; None when none gave anything."""
    terms = [
        value * weight
        for value, weight in zip(rewards.values(), weights, strict=False)
        if value is not None and not math.isnan(value)
    ]
    return sum(terms) if terms else None
