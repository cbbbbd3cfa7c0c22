"""One limit for all that a process waits for at the end of a run, however many waits that takes."""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollout_plugins.errors import SetupError

END_SECONDS = 30.0


def seconds_of_environment(name: str, default: float) -> float:
    """The number of seconds in an environment variable; the default where it is not set."""
    text = os.environ.get(name, "").strip()
    return checked_seconds(name, text) if text else default


def checked_seconds(name: str, value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < math.inf:
        raise SetupError(f"{name} is {value!r}; give a number of seconds")
    return seconds


class Ending:
    """The time that may still be waited. What the trainer does between two waits does not count."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is None:
            self.seconds = seconds_of_environment("ROLLOUT_PLUGINS_END_SECONDS", END_SECONDS)
        else:
            self.seconds = checked_seconds("end_seconds", seconds)
        self.goes_on()

    def goes_on(self) -> None:
        """It was not the end."""
        self.has_begun = False
        self._waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[Callable[[float], float]]:
        """Gives a function: until which `time.monotonic()` to wait, for some share of the limit to be used up."""
        self.has_begun = True
        began = time.monotonic() - self._waited
        if not threading.main_thread().is_alive():  # the interpreter exits, and every run that is open waits in turn
            began = min(began, _exit_began())
        try:
            yield lambda share: began + share * self.seconds
        finally:
            self._waited = time.monotonic() - began


@functools.cache
def _exit_began() -> float:
    return time.monotonic()
