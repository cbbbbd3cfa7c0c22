"""Read the environment variables that operators set.

`ROLLOUT_PLUGINS_DISABLE=a,b` disables plugins by name or distribution, before they are imported.
`ROLLOUT_PLUGINS_AUTOLOAD=0` loads only plugins that are named. `ROLLOUT_PLUGINS_STRICT=1` lets plugin errors end the
run. `ROLLOUT_PLUGINS_HANG_SECONDS` and `ROLLOUT_PLUGINS_END_SECONDS` limit how long to wait for a plugin and for the
end of a run.
"""

from __future__ import annotations

import math
import os

from rollout_plugins.errors import SetupError

PREFIX = "ROLLOUT_PLUGINS_"


def flag(name: str, *, default: bool) -> bool:
    """Return a variable as yes or no."""
    value = os.environ.get(PREFIX + name, "").strip().lower()
    return default if not value else value not in {"0", "false", "no", "off"}


def names(name: str) -> set[str]:
    """Return the names in a comma-separated variable."""
    return {part.strip() for part in os.environ.get(PREFIX + name, "").split(",") if part.strip()}


def seconds(name: str, default: float) -> float:
    """Return a number of seconds from a variable."""
    text = os.environ.get(PREFIX + name, "").strip()
    return checked_seconds(PREFIX + name, text) if text else default


def checked_seconds(name: str, value: object) -> float:
    """Return a number of seconds from the option or variable `name`; raise `SetupError` if it is not one."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        result = math.nan
    if isinstance(value, bool) or not 0 <= result < math.inf:
        raise SetupError(f"{name} is {value!r}; give a number of seconds")
    return result


def number(name: str, default: str) -> int:
    """Return a number that a launcher sets, such as `RANK`."""
    text = os.environ.get(name) or default
    if not text.isascii() or not text.isdigit():
        raise SetupError(f"{name} is {text!r} in the environment; set it to a number, or not at all")
    return int(text)
