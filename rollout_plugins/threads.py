"""Threads of ours: a plugin that hangs on one can be given up on, and a process that forks beside them can go on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any
from weakref import WeakSet

#: How long a fork waits at most for the modules that our threads are importing.
IMPORT_SECONDS = 5.0

_ours: WeakSet[threading.Thread] = WeakSet()


def own_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """A thread of ours, to be started; it ends with the process."""
    thread = threading.Thread(target=target, args=args, name=f"rollouts-{name}", daemon=True)
    _ours.add(thread)
    return thread


class PatientThread:
    """Runs one function at a time on a thread that is replaced when it does not come back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start()

    def _start(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        own_thread(self._name, _serve, self._jobs).start()

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


def _wait_for_imports() -> None:
    """Plugins and the libraries of sinks import what they need, when they need it.

    A child that is forked meanwhile would wait for such a module for ever: the thread that locked it is not there.
    """
    until = time.monotonic() + IMPORT_SECONDS
    while _is_importing() and time.monotonic() < until:
        time.sleep(0.001)


def _is_importing() -> bool:
    here = threading.current_thread()
    ours = {thread.ident for thread in threading.enumerate() if thread in _ours and thread is not here}
    return any(_has_import(frame) for ident, frame in sys._current_frames().items() if ident in ours)  # noqa: SLF001


def _has_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports)
