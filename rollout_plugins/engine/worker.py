"""A thread behind a bounded queue of jobs. It runs them in order; submitting one does not wait."""

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
    """A piece of work, which handles its own errors."""

    work: Callable[[], object]
    size: int = 0
    """How much of the queue's limit the job takes up; a job without a size always fits."""
    rollouts: int = 0
    """How many rollouts are lost if the job never runs."""
    is_given_up: bool = False


class Worker:
    """The queue and its thread."""

    def __init__(
        self,
        name: str,
        limit: int = 0,
        *,
        block: bool = False,
        on_late_finish: Callable[[Job], object] = lambda _: None,
    ) -> None:
        """`on_late_finish` is called with each abandoned job that finishes after all."""
        self.current: Job | None = None
        self.size = 0
        self._name = name
        self._limit = limit
        self._block = block
        self._on_late_finish = on_late_finish
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread, which continues with the jobs that a stopped thread left in the queue."""
        self._thread = thread = own_thread(self._name, self._work)
        try:
            thread.start()
        except RuntimeError:  # the system's thread limit is reached; a later start may succeed
            self._thread = None
            raise

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def put(self, job: Job) -> bool:
        """Queue a job; return False if the queue is full. Never waits, unless `block` is set."""
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
        """Return whether the job does not fit. A job larger than the limit fits into an empty queue."""
        return bool(job.size and self.size and self.size + job.size > self._limit)

    @property
    def is_idle(self) -> bool:
        return not (self._jobs or self.current)

    def wait(self, until: float) -> bool:
        """Wait until all jobs are done, at most until a `time.monotonic()`; return whether they are."""
        with self._changed:
            while not self.is_idle and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return self.is_idle

    def give_up(self) -> int:
        """Abandon all jobs that are not done; return how many rollouts that loses."""
        with self._changed:
            lost = sum(job.rollouts for job in self._jobs)
            self.size -= sum(job.size for job in self._jobs)
            self._jobs.clear()
            if self.current is not None and not self.current.is_given_up:
                self.current.is_given_up = True
                lost += self.current.rollouts
            self._changed.notify_all()
        return lost

    def stop(self) -> None:
        """End the thread after the queued jobs."""
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _work(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Run the next job; return False when the thread must end.

        A separate function, since a local variable of the loop would keep the job and its trainer alive.
        """
        job = self._next()
        if job is None:
            return False
        job.work()
        with self._changed:
            if job.is_given_up:
                self._on_late_finish(job)
            self.current = None
            self.size -= job.size
            self._changed.notify_all()
        return True

    def _next(self) -> Job | None:
        """Wait for the next job; return None when this thread was stopped or replaced.

        A replacement waits until its predecessor has finished its current job, however long that hangs.
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
    """Runs one function at a time on a thread that is replaced when the function hangs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start()

    def _start(self) -> None:
        self._worker = Worker(self._name)
        self._worker.start()

    def run(self, function: Callable[[], Any], give_up: Callable[[], bool], poll: float) -> bool:
        """Run the function, and raise what it raises.

        Every `poll` seconds, `give_up()` is asked; when it returns True, start a new thread and return False.
        """
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
        """End the thread when its current function returns."""
        self._worker.stop()


def _settle(done: Future[None], function: Callable[[], Any]) -> None:
    try:
        function()
    except BaseException as error:  # the waiting thread raises it
        done.set_exception(error)
    else:
        done.set_result(None)
