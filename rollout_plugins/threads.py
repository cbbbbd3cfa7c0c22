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
        self.thread = threading.Thread(target=_serve, args=(self._jobs,), name=self._name, daemon=True)
        self.thread.start()

    def run(self, function: Callable[[], Any], is_hung: Callable[[], bool], poll: float) -> _Job:
        """Run the function; gives up, and gets a new thread, once `is_hung()` says so while it is running."""
        job = _Job(function)
        self._jobs.put(job)
        while not job.done.wait(poll):
            if is_hung():
                job.hung = True
                self._start()
                break
        return job

    def stop(self) -> None:
        self._jobs.put(None)


class _Job:
    """One function call, and how it ended."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.hung = False


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job.function()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            job.error = error
        job.done.set()
