"""Recognise and convert numbers among values of any type."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, NamedTuple


def real(value: Any) -> float | None:
    """Return a number as a float, NaN and infinities included; None for a bool or another value. Never raises."""
    if type(value) is float:  # the usual case first
        return value
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def finite(value: Any) -> float | None:
    """Return the value as a float to compare, add or plot; None if it is not a finite number. Never raises."""
    number = real(value)
    return number if number is not None and math.isfinite(number) else None


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
    """A kind of value that a field or column accepts."""

    exact: type
    """The class of nearly all values, which need no conversion."""
    convert: Callable[[Any], Any]
    """Returns the value as `exact`, or raises."""
    otherwise: str
    """Message for people about a value that is not of this kind."""


REAL = Kind(float, _to_float, "not a number")
INTEGER = Kind(int, partial(_to_integer, bits=64), "not a 64-bit integer")
SMALL_INTEGER = Kind(int, partial(_to_integer, bits=32), "not a 32-bit integer")
BOOLEAN = Kind(bool, _to_flag, "neither True nor False")
