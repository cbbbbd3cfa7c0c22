"""Limit the total time that a process waits at the end of a run, over several waits."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollout_plugins.engine import env_vars as environment

END_SECONDS = 30.0


class Deadline:
    """The time that the end of a run may take. Only waiting counts, not what the trainer does between two waits."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is None:
            self.seconds = environment.seconds("END_SECONDS", END_SECONDS)
        else:
            self.seconds = environment.checked_seconds("end_seconds", seconds)
        self.reset()

    def reset(self) -> None:
        """Start over: training continues, so the next end may take the full limit again."""
        self.has_begun = False
        """Whether the end has begun."""
        self._waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[Callable[[float], float]]:
        """Yield a function that returns the `time.monotonic()` at which a share of the limit is used up."""
        self.has_begun = True
        began = time.monotonic() - self._waited
        if _is_exiting():  # all open runs share one limit then
            began = min(began, _exit_began())
        try:
            yield lambda share: began + share * self.seconds
        finally:
            self._waited = time.monotonic() - began

    @property
    def grace(self) -> float:
        """Extra seconds to wait for the worker when the interpreter exits.

        If the interpreter shuts down while a thread is inside Arrow's C++ code, the process aborts.
        """
        return self.seconds / 3 if _is_exiting() else 0.0


def _is_exiting() -> bool:
    """Return whether the interpreter is exiting: other threads may outlive the main program by hours."""
    main = threading.main_thread()
    return threading.current_thread() is main and not main.is_alive()


@functools.cache
def _exit_began() -> float:
    return time.monotonic()
