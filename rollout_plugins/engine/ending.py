"""One limit for all that a process waits for at the end of a run, however many waits that takes."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollout_plugins.engine import environment

END_SECONDS = 30.0


class Ending:
    """The time that may still be waited. What the trainer does between two waits does not count."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is None:
            self.seconds = environment.seconds("END_SECONDS", END_SECONDS)
        else:
            self.seconds = environment.checked_seconds("end_seconds", seconds)
        self.goes_on()

    def goes_on(self) -> None:
        """Training goes on: that was not the end, and the next one may take as long."""
        self.has_begun = False
        self._waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[Callable[[float], float]]:
        """Gives a function that says at which `time.monotonic()` a share of the limit is used up."""
        self.has_begun = True
        began = time.monotonic() - self._waited
        if _is_exiting():  # every run that is open waits in turn
            began = min(began, _exit_began())
        try:
            yield lambda share: began + share * self.seconds
        finally:
            self._waited = time.monotonic() - began

    @property
    def grace(self) -> float:
        """How much longer the store's thread is waited for where the interpreter exits.

        That ends a thread wherever it is, and if that is in the midst of Arrow's C++, the process aborts.
        """
        return self.seconds / 3 if _is_exiting() else 0.0


def _is_exiting() -> bool:
    """Whether the interpreter exits, which the main thread does last; others may outlive the main program by hours."""
    main = threading.main_thread()
    return threading.current_thread() is main and not main.is_alive()


@functools.cache
def _exit_began() -> float:
    return time.monotonic()
