"""Check the options of a plugin or sink when it is created, and report every fault in one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_plugins.errors import SetupError


def check(plugin: str, *faults: str | None) -> None:
    """Raise one `SetupError` with all faults, if there are any."""
    messages = [fault for fault in faults if fault]
    if messages:
        raise SetupError(f"{plugin}: {'; '.join(messages)}")


def one_of(name: str, value: Any, accepted: Sequence[str]) -> str | None:
    """Return a fault unless the value is one of the accepted texts."""
    if isinstance(value, str) and value in accepted:
        return None
    return f"{name}={value!r} is not one of {', '.join(accepted)}"


def integer(name: str, value: Any, lowest: int, highest: int | None = None, *, optional: bool = False) -> str | None:
    """Return a fault unless the value is an integer in the range (or None, if `optional`)."""
    if optional and value is None:
        return None
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and value >= lowest and (highest is None or value <= highest):
        return None
    bounds = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
    return f"{name}={value!r} is not a whole number {bounds}{' or None' if optional else ''}"


def fraction(name: str, value: Any) -> str | None:
    """Return a fault unless the value is a number above 0 and at most 1."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
        return None
    return f"{name}={value!r} is not a number above 0 and up to 1"


def flag(name: str, value: Any, *, optional: bool = False) -> str | None:
    """Return a fault unless the value is True or False (or None, if `optional`)."""
    if isinstance(value, bool) or (optional and value is None):
        return None
    return f"{name}={value!r} is not True or False"


def optional_name(name: str, value: Any) -> str | None:
    """Return a fault unless the value is a name or None."""
    if value is None or (isinstance(value, str) and value.strip()):
        return None
    return f"{name}={value!r} is not a name; give one, or leave it out"
