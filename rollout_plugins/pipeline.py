"""host → pipeline → plugins → store and sinks.

`submit` takes a generation batch on the training thread and returns at once. One worker thread does the rest, in
order: build the rollouts, let plugins transform them, choose what the sinks see, store all of them, hand traces to
the sinks. The queue between is bounded by bytes; when it is full the newest batch is dropped whole and counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rollout_hookspecs import Batch, Rollout, Run, Step, Trace

from rollout_plugins.counters import Counters
from rollout_plugins.dispatch import Dispatcher
from rollout_plugins.errors import SetupError
from rollout_plugins.loading import Plugins
from rollout_plugins.outbox import Outbox
from rollout_plugins.store.write import RunWriter
from rollout_plugins.threads import PatientThread
from rollout_plugins.trace import DefaultTrace

logger = logging.getLogger("rollout_plugins")

QUEUE_BYTES = 2 * 2**30
HANG_SECONDS = 60.0


def rollout_id(run: Run, batch: Batch, generation: int, rollout: Rollout) -> str:
    """The same rollout has the same id wherever it is computed; no two share one."""
    return f"{run.id}.{run.attempt}.{batch.split[0]}{generation}.{rollout.rank}.{rollout.index}"


class Pipeline:
    """Everything between a host and the disk, for one callback on one process."""

    def __init__(
        self,
        plugins: Plugins,
        *,
        sync: bool = False,
        strict: bool = False,
        on_full: str = "drop",
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        if on_full not in {"drop", "block"}:
            raise SetupError(f"on_full is {on_full!r}; accepted: 'drop', 'block'")
        if not plugins.manager.has_plugin("trace"):
            plugins.manager.register(DefaultTrace(), name="trace")
        self.counters = Counters()
        self.dispatcher = Dispatcher(plugins.manager, self.counters, strict=strict)
        self.run: Run | None = None
        self.generation = 0
        self.submitted: Counter[str] = Counter()
        self._sync = sync
        self._strict = strict
        self._block = on_full == "block"
        self._limit = queue_bytes
        self._hang_seconds = float(os.environ.get("ROLLOUT_PLUGINS_HANG_SECONDS", HANG_SECONDS))
        self._writer: RunWriter | None = None
        self._outboxes: list[Outbox] = []
        self._items: deque[tuple[Callable[[], None], int, int]] = deque()
        self._changed = threading.Condition()
        self._queued = 0
        self._busy = False
        self._error: BaseException | None = None
        self._metrics: dict[str, list[dict[str, float]]] = {}
        self._outage = False
        self._worker: threading.Thread | None = None
        self._hooks: PatientThread | None = None
        self._pid = os.getpid()

    # --- the training thread's side -----------------------------------------------------------------------------

    def start(self, run: Run, generation: int = 0) -> None:
        """Begin a run or an attempt."""
        if not self._sync and self._worker is None:
            self._hooks = PatientThread("rollouts-hooks")
            self._worker = threading.Thread(target=self._work, name="rollouts-worker", daemon=True)
            self._worker.start()
        self.run = run
        self.generation = generation
        self._put(lambda: self._start_run(run), 0, 0)

    def submit(self, batch: Batch) -> None:
        """Take one generation batch. Never waits, unless `on_full="block"` was asked for."""
        run, generation = self.run, self.generation
        if run is None or self._pid != os.getpid():
            return
        self.generation += 1
        self.submitted[batch.split] += batch.count
        self.counters.spent("training_thread", batch.seconds)
        self._put(lambda: self._process(run, batch, generation), batch.bytes, batch.count)
        self._raise_strict()

    def _put(self, work: Callable[[], None], size: int, count: int) -> None:
        if self._sync:
            self._attempt(work)
            return
        with self._changed:
            while self._block and self._queued and self._queued + size > self._limit:
                self._changed.wait()
            if self._queued and self._queued + size > self._limit:
                self._drop_full(count)
                return
            self._items.append((work, size, count))
            self._queued += size
            self._changed.notify_all()

    def _drop_full(self, count: int) -> None:
        if not self.counters.drops["queue_full"]:
            logger.warning(
                "recording is %d MB behind; the newest rollouts are left out until it catches up", self._queued >> 20
            )
        self.counters.drop("queue_full", count)

    def later(self, work: Callable[[], None]) -> None:
        """Do something on the worker thread, after what is queued."""
        self._put(work, 0, 0)

    def request_sync(self) -> None:
        """Have the disk keep what there is, soon; does not wait."""
        self._put(self._sync_store, 0, 0)

    def drain(self, seconds: float, *, sinks: bool = True) -> bool:
        """Wait until everything submitted is in the store and with the sinks, at most so long; whether it is."""
        until = time.monotonic() + seconds
        with self._changed:
            while (self._items or self._busy) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            done = not (self._items or self._busy)
        for outbox in self._outboxes if sinks else ():
            done = outbox.drain(until) and done
        self._raise_strict()
        return done

    def pop_metrics(self, split: str) -> dict[str, float]:
        """What `rollout_metrics` said since the last call, averaged over the generations."""
        with self._changed:
            rows = self._metrics.pop(split, [])
        names = dict.fromkeys(name for row in rows for name in row)
        values = {name: [row[name] for row in rows if name in row] for name in names}
        return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}

    def own_metrics(self) -> dict[str, float]:
        """What recording itself costs and loses, so far."""
        kinds = ("training_thread", "worker")
        figures = {f"seconds/{kind}": float(self.counters.seconds[kind]) for kind in kinds}
        figures |= {"queue_bytes": float(self._queued)}
        if self._writer is not None:
            figures["bytes_written"] = float(self._writer.bytes)
        return figures | {f"drops/{reason}": float(count) for reason, count in list(self.counters.drops.items())}

    @property
    def has_metrics(self) -> bool:
        return bool(self.dispatcher.implementations("rollout_metrics"))

    @property
    def has_global_sinks(self) -> bool:
        """Whether a sink wants to see the rollouts of all ranks on rank 0."""
        return any(_scope(plugin) == "global" for plugin in self.dispatcher.plugins_with("export_traces"))

    def close(self, seconds: float = 120.0, sink_seconds: float = 10.0) -> None:
        """End the run: everything stored, sinks told. What does not finish in time is counted."""
        if self.run is None or self._pid != os.getpid():
            return
        run, self.run = self.run, None
        self._put(lambda: self._end_hooks(run), 0, 0)
        if not self.drain(seconds, sinks=False):
            self._give_up()
        for outbox in self._outboxes:
            outbox.end_run(run)
        self._put(self._close_store, 0, 0)
        self.drain(seconds, sinks=False)
        self._close_sinks(time.monotonic() + sink_seconds)
        self._stop_threads()
        self._raise_strict()

    def _close_sinks(self, until: float) -> None:
        for outbox in self._outboxes:
            outbox.close(until)
        if self._writer is not None and any(outbox.missed for outbox in self._outboxes):
            self._store(lambda writer: writer.write_run(self.counters.summary(), ended=True), 0)
        self._writer, self._outboxes = None, []

    def _give_up(self) -> None:
        with self._changed:
            left = sum(count for _, _, count in self._items)
            self._items.clear()
            self._queued = 0
        self.counters.drop("not_finished_at_end", left)
        logger.warning("recording did not finish in time; %d rollouts are not in the store", left)

    def _stop_threads(self) -> None:
        with self._changed:
            self._worker = None
            self._changed.notify_all()
        if self._hooks is not None:
            self._hooks.stop()
            self._hooks = None

    def _raise_strict(self) -> None:
        """With strict=True, a plugin's error ends the run at the next chance."""
        if self._strict and self._error is not None:
            error, self._error = self._error, None
            raise error

    # --- the worker thread's side -------------------------------------------------------------------------------

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while not self._items:
                    if self._worker is not me:
                        return
                    self._changed.wait()
                work, size, _ = self._items.popleft()
                self._busy = True
            self._attempt(work)
            with self._changed:
                self._busy = False
                self._queued -= size
                self._changed.notify_all()

    def _attempt(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the worker must outlive anything; strict raises it later
            self._error = error
            if self._sync and self._strict:
                self._error = None
                raise
            if not self._strict:
                logger.warning("recording failed and goes on: %r", error, exc_info=error)
                self.counters.error("rollout_plugins")
        finally:
            self.counters.spent("worker", time.perf_counter() - started)

    def _with_hooks(self, function: Callable[[], None]) -> None:
        """Run plugin code where it can be given up on. A plugin that hangs is taken out, and the work resumed."""
        if self._hooks is None:
            self.dispatcher.thread = None
            function()
            return
        while True:
            self.dispatcher.thread = self._hooks.thread
            job = self._hooks.run(function, self._is_hung, min(0.5, self._hang_seconds / 4))
            if not job.hung:
                break
            current, self.dispatcher.current = self.dispatcher.current, None
            if current is not None:
                why = f"did not return from {current[1]} within {self._hang_seconds:g} s"
                self.dispatcher.remove(current[0], f"{why} (ROLLOUT_PLUGINS_HANG_SECONDS sets the limit)")
        if job.error is not None:
            raise job.error

    def _is_hung(self) -> bool:
        current = self.dispatcher.current
        hung = current is not None and time.monotonic() - current[2] > self._hang_seconds
        if hung:
            self.dispatcher.thread = _NOBODY  # from here on the old thread may not go on
        return hung

    def _start_run(self, run: Run) -> None:
        if self._writer is not None:
            self._close_store()
        self._writer = RunWriter(run)
        self._store(lambda writer: writer.write_run(), 0)
        sinks = self.dispatcher.plugins_with("export_traces")
        self._outboxes = self._outboxes or [
            Outbox(plugin, self.dispatcher, self.counters)
            for plugin in sinks
            if run.rank == 0 or _scope(plugin) != "global"
        ]
        for outbox in self._outboxes:
            outbox.start_run(run)
        self._with_hooks(lambda: self._notify_others("on_run_start", run))

    def _notify_others(self, hook: str, run: Run) -> None:
        """Plugins that are no sinks; those hear of it on their own threads."""
        sinks = {id(plugin) for plugin in self.dispatcher.plugins_with("export_traces")}
        for impl in self.dispatcher.implementations(hook):
            if id(impl.plugin) not in sinks:
                self.dispatcher.call(impl, hook, {"run": run})

    def _process(self, run: Run, batch: Batch, generation: int) -> None:
        try:
            raw = [self._stamp(run, batch, generation, rollout) for rollout in batch.build()]
        except Exception as error:
            self.counters.drop("build_failed", batch.count)
            raise RuntimeError(f"{batch.count} rollouts of step {batch.step} could not be built") from error
        work = _Work(raw, self._step(run, batch, generation, len(raw)))
        try:
            self._with_hooks(lambda: self._through_plugins(work))
        finally:
            own = [r for r in work.marked() if r.rank == run.rank]
            if self._store(lambda writer: writer.write(batch.split, own), len(own)):
                self.counters.stored(batch.split, len(own))
        for outbox in self._outboxes:
            outbox.send(work.traces, work.step)
        with self._changed:
            self._metrics.setdefault(batch.split, []).append(work.metrics)

    def _stamp(self, run: Run, batch: Batch, generation: int, rollout: Rollout) -> Rollout:
        return replace(
            rollout,
            id=rollout_id(run, batch, generation, rollout),
            run_id=run.id,
            attempt=run.attempt,
            split=batch.split,
            step=batch.step,
            generation=generation,
        )

    def _step(self, run: Run, batch: Batch, generation: int, seen: int) -> Step:
        return Step(
            split=batch.split,
            step=batch.step,
            generation=generation,
            rank=run.rank,
            world_size=run.world_size,
            seen=seen,
            gathered=batch.gathered or run.world_size == 1,
        )

    def _through_plugins(self, work: _Work) -> None:
        """Resumable: a plugin that hangs is taken out and this is called again for what is left."""
        dispatcher, step = self.dispatcher, work.step
        while work.done < len(work.raw):
            rollout = dispatcher.rollout(work.raw[work.done], step)
            if rollout is not None:
                work.rollouts.append(rollout)
            work.done += 1
        mine = [r for r in work.rollouts if r.rank == step.rank]
        work.metrics = dispatcher.metrics(mine, step)
        if self._outboxes:
            work.chosen, work.skipped = dispatcher.select(work.rollouts, step)
            work.traces = [trace for r in work.chosen if (trace := dispatcher.trace(r)) is not None]
            self._forward_alerts()

    def _forward_alerts(self) -> None:
        for plugin in self.dispatcher.plugins_with("rollout_metrics"):
            alerts = getattr(plugin, "alerts", None)
            while alerts:
                text = str(alerts.pop(0))
                for outbox in self._outboxes:
                    outbox.alert("rollouts", text)

    def _store(self, write: Callable[[RunWriter], None], count: int) -> bool:
        """Write, counting what a failing disk costs; said once for each outage. Tries again with every batch."""
        if self._writer is None:
            return False
        try:
            write(self._writer)
        except OSError as error:
            self.counters.drop("store_failed", count)
            if not self._outage:
                self._outage = True
                logger.warning(
                    "cannot write to %s: %s; rollouts are lost until this is fixed", self._writer.dir, error
                )
            return False
        if self._outage and count:
            self._outage = False
            lost = self.counters.drops["store_failed"]
            logger.warning("writing to %s works again; %d rollouts were lost meanwhile", self._writer.dir, lost)
        if self._writer.lost:
            self.counters.drop("unserialisable_field", len(self._writer.lost))
            self._writer.lost.clear()
        return True

    def _sync_store(self) -> None:
        self._store(lambda writer: writer.sync(), 0)
        self._store(lambda writer: writer.write_run(self.counters.summary()), 0)

    def _end_hooks(self, run: Run) -> None:
        self._with_hooks(lambda: self._notify_others("on_run_end", run))

    def _close_store(self) -> None:
        self._store(lambda writer: writer.close(self.counters.summary()), 0)


class _Work:
    """One generation on its way through the plugins."""

    def __init__(self, raw: Sequence[Rollout], step: Step) -> None:
        self.raw = raw
        self.step = step
        self.done = 0
        self.rollouts: list[Rollout] = []
        self.chosen: list[Rollout] = []
        self.skipped: dict[str, str] = {}
        self.traces: list[Trace] = []
        self.metrics: dict[str, float] = {}

    def marked(self) -> list[Rollout]:
        """All rollouts for the store, with who kept or skipped each of them; untouched ones where plugins broke off."""
        chosen = {r.id: r for r in self.chosen}
        rollouts = {r.id: r for r in [*self.raw[self.done :], *self.rollouts]}
        return sorted((self._mark(r, chosen) for r in rollouts.values()), key=lambda r: r.index)

    def _mark(self, rollout: Rollout, chosen: dict[str, Rollout]) -> Rollout:
        if rollout.id in chosen:
            return replace(rollout, marks=chosen[rollout.id].marks)
        why = self.skipped.get(rollout.id)
        return replace(rollout, marks={**rollout.marks, "sinks": why}) if why else rollout


_NOBODY = threading.Thread()


def _scope(plugin: Any) -> str:
    return str(getattr(plugin, "scope", "global"))
