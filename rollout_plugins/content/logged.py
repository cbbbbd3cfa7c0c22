"""Convert what a trainer logs to the numbers that are stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def loggable_values(values: Mapping[Any, Any]) -> dict[str, float | str]:
    """Return each value as a float; in place of a value that is not a number, the name of its type."""
    return {str(name): _number(value) for name, value in values.items()}


def _number(value: Any) -> float | str:
    with suppress(Exception):  # an integer too large for a float, or an object that raises
        if isinstance(value, (int, float)) or _is_scalar(value):
            return float(value)
    return type(value).__name__


def _is_scalar(value: Any) -> bool:
    """Return whether the value is one number of numpy or torch on the CPU. On a device, reading it would wait."""
    device = getattr(value, "device", None)
    return getattr(value, "shape", None) == () and getattr(device, "type", device) in (None, "cpu")
