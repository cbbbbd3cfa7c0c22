"""The queue between a trainer and the run: `submit` puts batches in on the training thread, a worker records them.

`submit` returns at once. The queue is limited by bytes. If it is full, the newest batch is dropped as a whole and
counted. `run_lifecycle` contains what the worker does with a batch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pluggy
import pyarrow as pa
from rollout_hookspecs import Batch, Finding, Run

from rollout_plugins.content.findings import distinct
from rollout_plugins.content.logged import loggable_values
from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.deadline import Deadline
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.error_text import error_text
from rollout_plugins.engine.hook_thread import HookThread
from rollout_plugins.engine.installed import DEFAULT_TRACE
from rollout_plugins.engine.metric_averages import log_names, loss_metrics
from rollout_plugins.engine.run_lifecycle import RunLifecycle
from rollout_plugins.engine.threads import own_thread, run_off_own_threads
from rollout_plugins.engine.worker import Job, Worker
from rollout_plugins.errors import SetupError
from rollout_plugins.store.findings import read_findings
from rollout_plugins.system.labels import BatchNames

logger = logging.getLogger("rollout_plugins")

QUEUE_BYTES = 2 * 2**30
SINK_SECONDS = 20.0
ABANDON_SECONDS = 5.0
COUNTS_SECONDS = 1.0
#: Shares of the limit for the end of a run: when the queue must be done, and when the store and the sinks must be.
QUEUE_SHARE, STORE_SHARE = 5 / 6, 11 / 12
#: Share of a long limit that one sink may use.
SINK_SHARE = 2 / 3


class MakeDispatcher(Protocol):
    """Creates the object that calls hooks; `rollout_plugins.testing` uses one that records the calls."""

    def __call__(self, manager: pluggy.PluginManager, counters: Counters, *, strict: bool) -> Dispatcher: ...


class Pipeline:
    """The bounded queue of one session on one process, and the worker thread behind it."""

    def __init__(
        self,
        plugins: Plugins,
        *,
        sync: bool = False,
        strict: bool = False,
        on_full: str = "drop",
        queue_bytes: int = QUEUE_BYTES,
        end_seconds: float | None = None,
        defers_tokens: bool = False,
        make_dispatcher: MakeDispatcher = Dispatcher,
    ) -> None:
        if on_full not in {"drop", "block"}:
            raise SetupError(f"on_full is {on_full!r}; accepted: 'drop', 'block'")
        if not plugins.manager.has_plugin(DEFAULT_TRACE):  # the pipelines of a callback share its plugins
            plugins.manager.register(DefaultTrace(), name=DEFAULT_TRACE)
        _import_pandas()
        self.counters = counters = Counters()
        self.dispatcher = make_dispatcher(plugins.manager, counters, strict=strict)
        self.run: Run | None = None
        """The run that takes batches; None before it starts and after it ends."""
        self.generation = 0
        """Number of the next generation batch."""
        self.submitted: Counter[str] = Counter()
        """Rollouts of this pipeline by split."""
        self._names = BatchNames()
        self._sync = sync
        self._strict = strict
        self._deadline = Deadline(end_seconds)
        hooks = HookThread(self.dispatcher, self._deadline, inline=sync)
        self._lifecycle = RunLifecycle(
            self.dispatcher, counters, hooks, self._record_error, defers_tokens=defers_tokens
        )
        self._worker = Worker(
            "worker",
            queue_bytes,
            block=on_full == "block",
            # An abandoned job that still finishes has counted its own losses.
            on_late_finish=lambda job: counters.drop("not_finished_at_end", -job.rollouts),
        )
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()

    # --- the training thread's side -----------------------------------------------------------------------------

    def start(self, run: Run, generation: int = 0) -> None:
        """Start a run, or an attempt of one."""
        if not self._worker.is_running:
            self._pid = os.getpid()
            if not self._sync:
                self._worker.start()
        if self.is_forked_copy:
            return
        self.run = run
        self.generation = generation
        self._lifecycle.hide_secrets()
        self._deadline.reset()
        self._put(lambda: self._lifecycle.start(run))

    @property
    def is_forked_copy(self) -> bool:
        """Whether this process was forked after the start: it has no worker thread, and its parent owns the files."""
        return self._pid != os.getpid()

    def submit(self, batch: Batch) -> None:
        """Queue one generation batch. Never waits, unless `on_full` is "block"."""
        run = self.run
        if run is None or self.is_forked_copy:
            return
        with self._lock:  # a trainer may generate on several threads
            generation, name = self.generation, self._names.name(run, batch.split, batch.step)
            self.generation += 1
        self._deadline.reset()
        self.submitted[batch.split] += batch.count
        self.counters.spent("training_thread", batch.seconds)
        self._put(lambda: self._lifecycle.process(run, batch, generation, name), batch.bytes, batch.count)
        # A job of its own, since sealing reads rollouts again: those of the batch are released by then.
        self._put(self._lifecycle.seal_due)

    def _put(self, work: Callable[[], None], size: int = 0, rollouts: int = 0) -> None:
        if self._sync:
            self._attempt(work)
        elif self._enqueue(Job(partial(self._attempt, work), size, rollouts)):
            self.counters.queued(max(size, self._worker.size))  # the worker may have finished the job by now
        else:
            self._drop_batch(rollouts)

    def _enqueue(self, job: Job) -> bool:
        try:
            return self._worker.put(job)
        except BaseException:  # Ctrl-C while on_full="block" waits for room
            self.counters.drop("queue_full", job.rollouts)
            raise

    def _drop_batch(self, count: int) -> None:
        if not self.counters.drops["queue_full"]:
            behind = self._worker.size >> 20
            logger.warning("recording is %d MB behind; new rollouts are dropped until it catches up", behind)
        self.counters.drop("queue_full", count)

    def count(self, reason: str, count: int) -> None:
        """Count rollouts that a host could not submit.

        The worker counts them, in order with the batches, so that each attempt gets its own losses.
        """
        if not self.is_forked_copy:
            self._put(partial(self._lifecycle.count, self.counters.drop, str(reason), int(count)), rollouts=int(count))

    def count_untrained(self, reason: str, count: int, step: int | None) -> None:
        """Count rollouts that a host submitted and on which its trainer did not train."""
        if not self.is_forked_copy:
            add = partial(self.counters.left_out, step=step)
            self._put(partial(self._lifecycle.count, add, str(reason), int(count)))

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` on the worker thread after the queued jobs, if a run is open."""
        if self.run is not None and not self.is_forked_copy:
            self._put(work)

    def log(self, step: int, values: Mapping[Any, Any]) -> None:
        """Store what the trainer logged at a step, in order with the batches."""
        self.later(partial(self._lifecycle.log, int(step), time.time(), loggable_values(values)))

    def request_sync(self) -> None:
        """Flush what is recorded to disk soon, without waiting for it."""
        self.later(self._lifecycle.sync)

    def drain(self, seconds: float, *, sinks: bool = True) -> bool:
        """Wait at most `seconds` until the store and the sinks have everything; return whether they do."""
        return self._drain(time.monotonic() + seconds, sinks=sinks)

    def drain_at_end(self, *, sinks: bool = True) -> bool:
        """Drain when training ends. This and `close` together wait at most for the limit of the end."""
        with self._deadline.waiting() as time_at:
            return self._drain(time_at(QUEUE_SHARE), sinks=sinks)

    def _drain(self, until: float, *, sinks: bool) -> bool:
        if self.is_forked_copy:
            return False
        is_done = self._worker.wait(until)
        for outbox in self._lifecycle.outboxes if sinks else ():
            is_done = outbox.drain(self._sink_limit(until)) and is_done
        return is_done

    def _sink_limit(self, until: float) -> float:
        """Return how long to wait for one sink, so that a hung sink leaves time for the others."""
        return min(until, time.monotonic() + max(SINK_SECONDS, SINK_SHARE * self._deadline.seconds))

    def raise_strict(self) -> None:
        """With strict=True, raise the last plugin error since the previous call. No other method raises it."""
        if self._strict and self._error is not None:
            error, self._error = self._error, None
            raise error

    # --- metrics and facts --------------------------------------------------------------------------------------

    def pop_metrics(self, split: str, dataset: str = "") -> dict[str, float]:
        """Return what `rollout_metrics` reported since the last call, averaged over the generations."""
        return {} if self.is_forked_copy else self._lifecycle.metrics.pop((split, dataset), self.dispatcher.headlines)

    def log_metrics(self, split: str, prefix: str = "eval", dataset: str = "") -> dict[str, float]:
        """Return the plugins' metrics and the losses so far, under the names that they have in the trainer's log."""
        numbers = self.pop_metrics(split, dataset)
        if split == "train" and self.run is not None and self.dispatcher.implementations("rollout_metrics"):
            numbers |= self.recording_metrics()
        return log_names(numbers, f"{prefix}_rollouts" if split == "eval" else "rollouts")

    def recording_metrics(self) -> dict[str, float]:
        """Return what recording lost; also what it cost, if a plugin wants every metric in the log."""
        if self.dispatcher.is_verbose:
            return self.own_metrics()
        return loss_metrics(dict(self.counters.drops), dict(self.counters.unsent))

    def own_metrics(self) -> dict[str, float]:
        """Return all costs and losses of recording so far."""
        return self.counters.as_metrics(self._worker.size, self._lifecycle.storage.bytes)

    def findings_of(self, run: Run) -> list[Finding]:
        """Return what checks found in a run, on all its ranks and in earlier attempts too."""
        return distinct([*read_findings(Path(run.dir)), *self._lifecycle.findings.findings])

    @property
    def end_seconds(self) -> float:
        """Limit in seconds for the end of a run."""
        return self._deadline.seconds

    @property
    def has_global_sinks(self) -> bool:
        """Whether a sink wants the rollouts of all ranks on rank 0."""
        return any(as_sink(plugin).scope == "global" for plugin in self.dispatcher.plugins_with("export_traces"))

    # --- the end of a run ---------------------------------------------------------------------------------------

    def close(self) -> Run | None:
        """End the run: store everything and finish the sinks; count what does not finish in time.

        Return the run that ended, or None if no run was open.
        """
        if self.is_forked_copy or run_off_own_threads(self.close):
            return None
        run, self.run = self.run, None
        if run is not None:
            with self._deadline.waiting() as time_at:
                try:
                    self._close(time_at)
                except BaseException:  # a second Ctrl-C: the user wants to leave now
                    self._abandon()
                    raise
            self._worker.stop()
        return run

    def _close(self, time_at: Callable[[float], float]) -> None:
        lifecycle = self._lifecycle
        self._put(lifecycle.notify_end)
        if not self._worker.wait(time_at(QUEUE_SHARE)):
            self._give_up()
        lifecycle.end_sinks()
        self._put(lifecycle.close_store)
        self._worker.wait(time_at(STORE_SHARE))
        for outbox in lifecycle.outboxes:
            outbox.close(self._sink_limit(time_at(STORE_SHARE)))
        lifecycle.show_texts_again()
        self._put(lambda: lifecycle.release(time_at(1)))
        self._wait_or_write_counts(time_at(1) + self._deadline.grace)

    def _abandon(self) -> None:
        """End the run without waiting: count what is unfinished, and write that into the run."""
        self._lifecycle.hooks.time_limit = 0.0
        self._give_up()
        for outbox in self._lifecycle.outboxes:
            outbox.close(0)
        self._put(self._lifecycle.close_store)
        self._put(self._lifecycle.forget)
        self._wait_or_write_counts(time.monotonic() + ABANDON_SECONDS)
        self._worker.stop()

    def _wait_or_write_counts(self, until: float) -> None:
        """Wait for the worker; if it does not return, write into the run what was lost.

        On a thread that is not waited for longer than a moment, since the worker may be stuck in the disk. When the
        worker returns before the process ends, it writes the final counts.
        """
        if not self._worker.wait(until):
            writing = own_thread("counts", self._attempt, self._lifecycle.write_counts)
            writing.start()
            writing.join(COUNTS_SECONDS)

    def _give_up(self) -> None:
        lost = self._worker.give_up()
        self.counters.drop("not_finished_at_end", lost)
        if lost:
            logger.warning("recording did not finish in time; %d rollouts are not in the store", lost)

    # --- the worker thread's side -------------------------------------------------------------------------------

    def _attempt(self, work: Callable[[], None]) -> None:
        """Run a job; the worker survives whatever it raises. With strict=True, `raise_strict` raises it later."""
        started = time.perf_counter()
        try:
            work()
        except BaseException as error:
            if self._sync and isinstance(error, KeyboardInterrupt):
                raise
            self._record_error(error)
            if not self._strict:
                logger.warning("recording failed and continues: %s", error_text(error), exc_info=error)
                self.counters.error("rollout_plugins")
        finally:
            self.counters.spent("worker", time.perf_counter() - started)

    def _record_error(self, error: BaseException) -> None:
        """Store the error for `raise_strict`, and only then: an error keeps its frames' objects alive."""
        if self._strict:
            self._error = error


def _import_pandas() -> None:
    """Make PyArrow import pandas, which it does when it creates its first array.

    If a worker thread did that during a fork, the child would deadlock on the import lock.
    """
    with suppress(Exception):
        pa.array([0])
