"""A thread of ours behind a bounded queue: it does jobs in order, and whoever hands one over does not wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollout_plugins.engine.threads import own_thread


@dataclass(eq=False)
class Job:
    """Something to do. It deals with its own errors."""

    work: Callable[[], object]
    size: int = 0
    """How much of the queue's limit it takes; a job without a size always fits."""
    rollouts: int = 0
    """How many rollouts are lost if it is never done."""
    is_given_up: bool = False


class Worker:
    """The queue and its thread."""

    def __init__(
        self,
        name: str,
        limit: int = 0,
        *,
        block: bool = False,
        came_back: Callable[[Job], object] = lambda _: None,
    ) -> None:
        """`came_back` hears of a job that was given up and ended after all."""
        self.current: Job | None = None
        self.size = 0
        self._name = name
        self._limit = limit
        self._block = block
        self._came_back = came_back
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread. It goes on with what one that was stopped before has left."""
        self._thread = thread = own_thread(self._name, self._work)
        try:
            thread.start()
        except RuntimeError:  # a process may have so many threads and no more: the next one may try again
            self._thread = None
            raise

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def put(self, job: Job) -> bool:
        """Queue a job; False when the queue is full. Never waits, unless `block` says so."""
        with self._changed:
            while self._block and self._is_full_for(job):
                self._changed.wait()
            if self._is_full_for(job):
                return False
            self._jobs.append(job)
            self.size += job.size
            self._changed.notify_all()
            return True

    def _is_full_for(self, job: Job) -> bool:
        """A job larger than the limit still fits into an empty queue."""
        return bool(job.size and self.size and self.size + job.size > self._limit)

    @property
    def is_idle(self) -> bool:
        return not (self._jobs or self.current)

    def wait(self, until: float) -> bool:
        """Wait until nothing is left to do, at most until a `time.monotonic()`; whether nothing is."""
        with self._changed:
            while not self.is_idle and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return self.is_idle

    def give_up(self) -> int:
        """Forget everything that is not done; how many rollouts that loses."""
        with self._changed:
            lost = sum(job.rollouts for job in self._jobs)
            self.size -= sum(job.size for job in self._jobs)
            self._jobs.clear()
            if self.current is not None:
                self.current.is_given_up = True
                lost += self.current.rollouts
            self._changed.notify_all()
        return lost

    def stop(self) -> None:
        """End the thread, once it has done what is queued."""
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _work(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """In a function of its own: a local of the loop would keep the job, and its trainer, until the next one."""
        job = self._next()
        if job is None:
            return False
        job.work()
        with self._changed:
            if job.is_given_up:
                self._came_back(job)
            self.current = None
            self.size -= job.size
            self._changed.notify_all()
        return True

    def _next(self) -> Job | None:
        """The next job, once there is one; None when this thread was stopped or another one has taken over.

        A thread that took over waits for what the one before still does, however long that hangs.
        """
        me = threading.current_thread()
        with self._changed:
            while self._thread is me and (self.current is not None or not self._jobs):
                self._changed.wait()
            if self._thread not in {me, None} or self.current is not None or not self._jobs:
                return None
            self.current = self._jobs.popleft()
            return self.current


class ReplaceableThread:
    """Runs one function at a time on a thread that is replaced when it does not come back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start()

    def _start(self) -> None:
        self._worker = Worker(self._name)
        self._worker.start()

    def run(self, function: Callable[[], Any], give_up: Callable[[], bool], poll: float) -> bool:
        """Run the function and raise what it raises; False, and a new thread, once `give_up()` says so meanwhile."""
        done: Future[None] = Future()
        self._worker.put(Job(partial(_settle, done, function)))
        while wait([done], poll).not_done:
            if give_up():
                self.stop()
                self._start()
                return False
        done.result()
        return True

    def stop(self) -> None:
        """End the thread, once it is back."""
        self._worker.stop()


def _settle(done: Future[None], function: Callable[[], Any]) -> None:
    try:
        function()
    except BaseException as error:  # the thread that waits raises it
        done.set_exception(error)
    else:
        done.set_result(None)
