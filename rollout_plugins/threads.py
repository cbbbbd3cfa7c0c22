"""Threads that can be given up on: a plugin that hangs must not take the store with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class PatientThread:
    """Runs one function at a time on a thread that is replaced when it does not come back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start()

    def _start(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=_serve, args=(self._jobs,), name=self._name, daemon=True).start()

    def run(self, function: Callable[[], Any], give_up: Callable[[], bool], poll: float) -> bool:
        """Run the function and raise what it raises; False, and a new thread, once `give_up()` says so meanwhile."""
        job = _Job(function)
        self._jobs.put(job)
        while not job.done.wait(poll):
            if give_up():
                self.stop()
                self._start()
                return False
        if job.error is not None:
            raise job.error
        return True

    def stop(self) -> None:
        """End the thread, once it is back."""
        self._jobs.put(None)


class _Job:
    """One function call, and how it ended."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.done = threading.Event()
        self.error: BaseException | None = None


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job.function()
        except BaseException as error:  # handed to the thread that waits
            job.error = error
        job.done.set()
