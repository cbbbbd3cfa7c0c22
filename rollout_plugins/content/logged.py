"""What a trainer logs, as it is stored: numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def loggable_values(values: Mapping[Any, Any]) -> dict[str, float | str]:
    """Return each value as a float; in place of one that is not a number, the name of its type."""
    return {str(name): _number(value) for name, value in values.items()}


def _number(value: Any) -> float | str:
    with suppress(Exception):  # an integer beyond all floats, or an object that objects
        if isinstance(value, (int, float)) or _is_scalar(value):
            return float(value)
    return type(value).__name__


def _is_scalar(value: Any) -> bool:
    """Whether it is a single number of numpy or torch. One on a device is not read: the trainer would wait for it."""
    device = getattr(value, "device", None)
    return getattr(value, "shape", None) == () and getattr(device, "type", device) in (None, "cpu")
