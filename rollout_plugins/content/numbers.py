"""Numbers among values of any kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, NamedTuple


def real(value: Any) -> float | None:
    """Return the float in a number, NaN and infinities included; None for a flag or anything else. Never raises."""
    if type(value) is float:  # nearly all of them, and quick to tell
        return value
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def finite(value: Any) -> float | None:
    """Return the value as a float to compare, add up or draw; None when it is not a finite number. Never raises."""
    known = real(value)
    return known if known is not None and math.isfinite(known) else None


def _to_float(value: Any) -> float:
    if isinstance(value, (str, bytes, bytearray)):  # float() would parse text
        raise TypeError
    return float(value)


def _to_integer(value: Any, bits: int) -> int:
    number = int(value)
    if number != value or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError
    return number


def _to_flag(value: Any) -> bool:
    if value not in (True, False):
        raise TypeError
    return bool(value)


class Kind(NamedTuple):
    """A kind of value that a field or a column takes."""

    exact: type
    """The class of nearly all values; these need no conversion."""
    convert: Callable[[Any], Any]
    """Returns the value as `exact`, or raises."""
    otherwise: str
    """What a person reads about a value that is not of this kind."""


REAL = Kind(float, _to_float, "not a number")
INTEGER = Kind(int, partial(_to_integer, bits=64), "not a whole number of 64 bits")
SMALL_INTEGER = Kind(int, partial(_to_integer, bits=32), "not a whole number of 32 bits")
BOOLEAN = Kind(bool, _to_flag, "neither True nor False")
