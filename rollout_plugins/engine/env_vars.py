"""Environment variables, as operators set them.

`ROLLOUT_PLUGINS_DISABLE=a,b` (names or distributions, blocked before they are imported), `ROLLOUT_PLUGINS_AUTOLOAD=0`
(no discovered plugins), `ROLLOUT_PLUGINS_STRICT=1` (plugin errors end the run), `ROLLOUT_PLUGINS_HANG_SECONDS` and
`ROLLOUT_PLUGINS_END_SECONDS` (how long to wait for a plugin, and at the end of a run).
"""

from __future__ import annotations

import math
import os

from rollout_plugins.errors import SetupError

PREFIX = "ROLLOUT_PLUGINS_"


def flag(name: str, *, default: bool) -> bool:
    """A yes or no."""
    value = os.environ.get(PREFIX + name, "").strip().lower()
    return default if not value else value not in {"0", "false", "no", "off"}


def names(name: str) -> set[str]:
    """A list of names with commas between them."""
    return {part.strip() for part in os.environ.get(PREFIX + name, "").split(",") if part.strip()}


def seconds(name: str, default: float) -> float:
    text = os.environ.get(PREFIX + name, "").strip()
    return checked_seconds(PREFIX + name, text) if text else default


def checked_seconds(name: str, value: object) -> float:
    """A number of seconds from an option or a variable of this name."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not 0 <= found < math.inf:
        raise SetupError(f"{name} is {value!r}; give a number of seconds")
    return found


def number(name: str, default: str) -> int:
    """A number that a launcher sets, such as `RANK`."""
    text = os.environ.get(name) or default
    if not text.isascii() or not text.isdigit():
        raise SetupError(f"{name} is {text!r} in the environment; set it to a number, or not at all")
    return int(text)
