"""Numbers among values of any kind. Never raises."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def real(value: Any) -> float | None:
    """The float in a number, NaN and infinities included; None for a flag, and for whatever is not a number."""
    if type(value) is float:  # nearly all of them, and quick to tell
        return value
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def finite(value: Any) -> float | None:
    """The value as a float to compare, add up or draw; None when it is not a finite number."""
    known = real(value)
    return known if known is not None and math.isfinite(known) else None
