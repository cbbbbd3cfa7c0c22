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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Batch, Rollout, Run, Step

from rollout_plugins.content.fit import fitted
from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.ending import Ending, seconds_of_environment
from rollout_plugins.engine.loading import Plugins
from rollout_plugins.engine.outbox import Outbox, is_more_than_sink
from rollout_plugins.engine.telling import be_discreet, be_open, is_required, shown
from rollout_plugins.engine.work import Work, distinct
from rollout_plugins.engine.worker import Job, ReplaceableThread, Worker
from rollout_plugins.errors import SetupError
from rollout_plugins.store.annotate import annotate
from rollout_plugins.store.write import RunWriter

logger = logging.getLogger("rollout_plugins")

QUEUE_BYTES = 2 * 2**30
HANG_SECONDS = 60.0
SINK_SECONDS = 20.0
#: Of the limit for the end of a run: what the queue may take, and what the store and the sinks may have then.
QUEUE_SHARE, LAST_WORDS_SHARE = 5 / 6, 11 / 12
#: Rollouts of other ranks whose reasons are kept in memory before they are written.
CHOSEN_AT_ONCE = 10_000


def _import_pandas() -> None:
    """PyArrow does it with its first array. On a thread of ours, a child forked meanwhile could never import it."""
    with suppress(Exception):
        pa.array([0])


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
        end_seconds: float | None = None,
    ) -> None:
        if on_full not in {"drop", "block"}:
            raise SetupError(f"on_full is {on_full!r}; accepted: 'drop', 'block'")
        if not plugins.manager.has_plugin("trace"):
            plugins.manager.register(DefaultTrace(), name="trace")
        _import_pandas()
        self.counters = counters = Counters()
        self.dispatcher = Dispatcher(plugins.manager, self.counters, strict=strict)
        self.run: Run | None = None
        self._shown_run: Run | None = None
        self.generation = 0
        self.submitted: Counter[str] = Counter()
        self._sync = sync
        self._strict = strict
        self._hang_seconds = seconds_of_environment("ROLLOUT_PLUGINS_HANG_SECONDS", HANG_SECONDS)
        self._ending = Ending(end_seconds)
        self._begun: tuple[str, int] | None = None
        self._writer: RunWriter | None = None
        self._outboxes: list[Outbox] = []
        self._worker = Worker(
            "worker",
            queue_bytes,
            block=on_full == "block",
            came_back=lambda late: counters.drop("not_finished_at_end", -late.rollouts),  # it counted its own losses
        )
        self._error: BaseException | None = None
        self._metrics: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
        self._lost_in_outage: int | None = None
        self._elsewhere: list[dict[str, str]] = []
        self._hooks: ReplaceableThread | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()

    # --- the training thread's side -----------------------------------------------------------------------------

    def start(self, run: Run, generation: int = 0) -> None:
        """Begin a run or an attempt."""
        if not self._worker.is_running:
            self._pid = os.getpid()
            if not self._sync:
                self._worker.start()
        if self.is_elsewhere:
            return
        self.run = run
        self.generation = generation
        if self.dispatcher.has_required:
            be_discreet(self)
        self._ending.goes_on()
        self._put(lambda: self._start_run(run))

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked copy: it has no worker thread, and the files belong to the original."""
        return self._pid != os.getpid()

    def submit(self, batch: Batch) -> None:
        """Take one generation batch. Never waits, unless `on_full="block"` was asked for."""
        run = self.run
        if run is None or self.is_elsewhere:
            return
        with self._lock:  # a trainer may generate on several threads
            generation = self.generation
            self.generation += 1
        self._ending.goes_on()
        self.submitted[batch.split] += batch.count
        self.counters.spent("training_thread", batch.seconds)
        self._put(lambda: self._process(run, batch, generation), batch.bytes, batch.count)

    def _put(self, work: Callable[[], None], size: int = 0, rollouts: int = 0) -> None:
        if self._sync:
            self._attempt(work)
        elif not self._worker.put(Job(partial(self._attempt, work), size, rollouts)):
            self._drop_full(rollouts)

    def _drop_full(self, count: int) -> None:
        if not self.counters.drops["queue_full"]:
            logger.warning(
                "recording is %d MB behind; the newest rollouts are left out until it catches up",
                self._worker.size >> 20,
            )
        self.counters.drop("queue_full", count)

    def later(self, work: Callable[[], None]) -> None:
        """Do something on the worker thread, after what is queued; nothing before the run starts or after it ends."""
        if self.run is not None and not self.is_elsewhere:
            self._put(work)

    def request_sync(self) -> None:
        """Have the disk keep what there is, soon; does not wait."""
        self.later(self._sync_store)

    def drain(self, seconds: float, *, sinks: bool = True) -> bool:
        """Wait until everything submitted is in the store and with the sinks, at most so long; whether it is."""
        return self._drain(time.monotonic() + seconds, sinks=sinks)

    def drain_at_end(self, *, sinks: bool = True) -> bool:
        """The same where a training ends; this and `close` wait no longer than the limit, together."""
        with self._ending.waiting() as until:
            return self._drain(until(QUEUE_SHARE), sinks=sinks)

    def _drain(self, until: float, *, sinks: bool) -> bool:
        if self.is_elsewhere:
            return False
        done = self._worker.wait(until)
        for outbox in self._outboxes if sinks else ():
            done = outbox.drain(min(until, time.monotonic() + SINK_SECONDS)) and done
        return done

    def pop_metrics(self, split: str, dataset: str = "") -> dict[str, float]:
        """What `rollout_metrics` said since the last call, averaged over the generations."""
        if self.is_elsewhere:
            return {}
        with self._lock:
            sums = self._metrics.pop((split, dataset), {})
        return {name: total / count for name, (total, count) in sums.items()}

    def _add_metrics(self, batch: Batch, numbers: Mapping[str, float]) -> None:
        """Sums, not rows: a trainer that never logs asks for none of them."""
        with self._lock:
            sums = self._metrics.setdefault((batch.split, batch.dataset), {})
            for name, number in numbers.items():
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + number, count + 1

    def own_metrics(self) -> dict[str, float]:
        """What recording itself costs and loses, so far."""
        kinds = ("training_thread", "worker")
        figures = {f"seconds/{kind}": float(self.counters.seconds[kind]) for kind in kinds}
        figures |= {"queue_bytes": float(self._worker.size)}
        if self._writer is not None:
            figures["bytes_written"] = float(self._writer.bytes)
        return figures | {f"drops/{reason}": float(count) for reason, count in list(self.counters.drops.items())}

    @property
    def end_seconds(self) -> float:
        """How long the end of a run may wait."""
        return self._ending.seconds

    @property
    def has_metrics(self) -> bool:
        return bool(self.dispatcher.implementations("rollout_metrics"))

    @property
    def _has_plugins(self) -> bool:
        """Whether there is anything that could hang; a thread for it is only made then."""
        return any(not isinstance(plugin, DefaultTrace) for _, plugin in self.dispatcher.manager.list_name_plugin())

    @property
    def has_global_sinks(self) -> bool:
        """Whether a sink wants to see the rollouts of all ranks on rank 0."""
        return any(_scope(plugin) == "global" for plugin in self.dispatcher.plugins_with("export_traces"))

    def close(self) -> None:
        """End the run: everything stored, sinks told. What does not finish in time is counted."""
        if self.run is None or self.is_elsewhere:
            return
        if threading.current_thread().name.startswith("rollouts-"):  # the garbage collector chose one of our threads
            threading.Thread(target=self.close, name="closing-rollouts").start()
            return
        run, self.run = self.run, None
        with self._ending.waiting() as until:
            self._close(run, until)
        self._stop_threads()

    def _close(self, run: Run, until: Callable[[float], float]) -> None:
        self._put(lambda: self._tell_others("on_run_end", self._shown_run or run))
        if not self._worker.wait(until(QUEUE_SHARE)):
            self._give_up()
        for outbox in self._outboxes:  # there are none before the run has begun
            outbox.end_run(self._shown_run or run)
        self._put(self._close_store)
        self._worker.wait(until(LAST_WORDS_SHARE))
        for outbox in self._outboxes:
            outbox.close(min(until(LAST_WORDS_SHARE), time.monotonic() + SINK_SECONDS))
        if not any(outbox.is_stuck for outbox in self._outboxes):  # one that comes back may raise
            be_open(self)
        self._put(self._forget_run)
        self._worker.wait(until(1))

    def _give_up(self) -> None:
        left = self._worker.give_up()
        self.counters.drop("not_finished_at_end", left)
        logger.warning("recording did not finish in time; %d rollouts are not in the store", left)

    def _stop_threads(self) -> None:
        self._worker.stop()
        if self._hooks is not None:
            self._hooks.stop()
            self._hooks = None

    def raise_strict(self) -> None:
        """With strict=True, raise what a plugin raised since the last call. Nothing else here ever raises it."""
        if self._strict and self._error is not None:
            error, self._error = self._error, None
            raise error

    # --- the worker thread's side -------------------------------------------------------------------------------

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do a piece of work; the worker outlives whatever it raises. With strict=True it is raised later."""
        started = time.perf_counter()
        try:
            work()
        except BaseException as error:
            if self._sync and isinstance(error, KeyboardInterrupt):
                raise
            self._note_error(error)
            if not self._strict:
                logger.warning("recording failed and goes on: %s", shown(error), exc_info=error)
                self.counters.error("rollout_plugins")
        finally:
            self.counters.spent("worker", time.perf_counter() - started)

    def _note_error(self, error: BaseException) -> None:
        """Keep it for `raise_strict`, if that will ask: an error keeps alive what was at work when it was raised."""
        if self._strict:
            self._error = error

    def _with_hooks(self, function: Callable[[], None]) -> None:
        """Run plugin code where it can be given up on. A plugin that hangs is taken out, and the work resumed."""
        if not self._worker.is_running or not self._has_plugins:
            function()
            return
        self._hooks = self._hooks or ReplaceableThread("hooks")
        while not self._hooks.run(function, self._take_out_hung, min(0.5, self._hang_seconds / 4)):
            pass

    def _take_out_hung(self) -> bool:
        seconds = self._hang_seconds
        if self._ending.has_begun:  # or nothing would be stored that waits behind it
            seconds = min(seconds, max(self._ending.seconds / 3, 1.0))
        call = self.dispatcher.give_up_after(seconds)
        if call is None:
            return False
        why = f"did not return from {call.hook} within {seconds:g} s"
        self.dispatcher.remove(call.plugin_name, f"{why} (ROLLOUT_PLUGINS_HANG_SECONDS sets the limit)")
        return True

    def _start_run(self, run: Run) -> None:
        if self._writer is not None:
            self._close_store()
        if self._begun is not None and self._begun != (run.id, run.attempt):
            self.counters.begin()
            self.dispatcher.begin()
        self._begun = (run.id, run.attempt)
        run = self._shown_run = self._cleaned_run(run)
        self._writer = RunWriter(run)
        self._store(lambda writer: writer.write_run(), 0)
        sinks = self.dispatcher.plugins_with("export_traces")
        self._outboxes = self._outboxes or [
            Outbox(plugin, self.dispatcher, self.counters, _scope(plugin), self._note_error)
            for plugin in sinks
            if run.rank == 0 or _scope(plugin) != "global"
        ]
        for outbox in self._outboxes:
            outbox.start_run(run)
        self._tell_others("on_run_start", run)

    def _cleaned_run(self, run: Run) -> Run:
        """The run as everybody but its `required` plugins gets to know it."""
        if not self.dispatcher.has_required:
            return run
        impls = self.dispatcher.implementations("on_run_start")
        self._tell("on_run_start", run, [impl for impl in impls if is_required(impl.plugin)])
        made: list[Run] = []
        self._with_hooks(lambda: made.append(self.dispatcher.cleaned_run(run)))
        return made[-1]

    def _tell_others(self, hook: str, run: Run) -> None:
        """Plugins that are no sinks; those hear of it on their own threads."""
        sinks = {id(plugin) for plugin in self.dispatcher.plugins_with("export_traces")}
        if hook == "on_run_start":
            sinks = {
                id(outbox.plugin) for outbox in self._outboxes if not is_more_than_sink(outbox.plugin, self.dispatcher)
            }
            sinks |= {id(plugin) for plugin in self.dispatcher.plugins_with(hook) if is_required(plugin)}
        self._tell(hook, run, [i for i in self.dispatcher.implementations(hook) if id(i.plugin) not in sinks])

    def _tell(self, hook: str, run: Run, waiting: list[Any]) -> None:
        def tell() -> None:
            while waiting:
                self.dispatcher.call(waiting.pop(0), hook, {"run": run})

        self._with_hooks(tell)

    def _process(self, run: Run, batch: Batch, generation: int) -> None:
        try:
            raw = distinct([self._stamp(run, batch, generation, self._fitted(rollout)) for rollout in batch.build()])
        except (Exception, SystemExit) as error:
            self.counters.drop("build_failed", batch.count)
            raise RuntimeError(f"{batch.count} rollouts of step {batch.step} could not be built") from error
        work = Work(raw, self._step(run, batch, generation, len(raw)))
        try:
            self._with_hooks(lambda: self._through_plugins(work))
        finally:
            if self.dispatcher.has_required:
                work.forget_unseen(self.counters)
            own = work.marked(run.rank)
            if self._store(lambda writer: writer.write(batch.split, own), len(own)):
                self.counters.stored(batch.split, len(own))
            self._elsewhere += work.chosen_elsewhere(run.rank)
            if len(self._elsewhere) >= CHOSEN_AT_ONCE:
                self._tell_chosen()
        for outbox in self._outboxes:
            outbox.send(work.traces_for(outbox.scope), work.step)
        self._add_metrics(batch, work.metrics or {})

    def _fitted(self, rollout: Rollout) -> Rollout:
        made = fitted(rollout)
        if made is not rollout:
            self.counters.drop("unserialisable_field", sum(mark.startswith("lost:") for mark in made.marks))
        return made

    def _stamp(self, run: Run, batch: Batch, generation: int, rollout: Rollout) -> Rollout:
        if not batch.gathered:
            rollout = replace(rollout, rank=run.rank)
        return replace(
            rollout,
            id=rollout_id(run, batch, generation, rollout),
            run_id=run.id,
            attempt=run.attempt,
            split=batch.split,
            step=batch.step,
            generation=generation,
            marks={**rollout.marks, "dataset": batch.dataset} if batch.dataset else rollout.marks,
        )

    def _step(self, run: Run, batch: Batch, generation: int, seen: int) -> Step:
        return Step(
            split=batch.split,
            step=batch.step,
            generation=generation,
            rank=run.rank,
            world_size=run.world_size,
            seen=seen,
            dataset=batch.dataset,
            evaluation=batch.evaluation,
            gathered=batch.gathered or run.world_size == 1,
        )

    def _through_plugins(self, work: Work) -> None:
        """Resumable: a plugin that hangs is taken out and this is called again for what is left."""
        dispatcher, step = self.dispatcher, work.step
        while len(work.done) < len(work.raw):
            work.done.append(dispatcher.rollout(work.raw[len(work.done)], step))
        kept = [rollout for rollout in work.done if rollout is not None]
        if work.chosen is None and self._outboxes:
            work.chosen, work.skipped = dispatcher.select(kept, step)
        if not work.is_clean and work.chosen is not None:
            self._clean(work, kept)
        if work.metrics is None:
            own = [r for r in kept if r.rank == step.rank]
            work.metrics = dispatcher.cleaned_names(dispatcher.metrics(own, step))
        if work.chosen is None:
            return
        if any(outbox.scope == "stream" for outbox in self._outboxes):
            work.streamed = [r for r in kept if r.rank == step.rank]
        for rollout in [*work.chosen, *work.streamed]:
            if rollout.id not in work.traces:
                work.traces[rollout.id] = dispatcher.trace(rollout)
        self._forward_alerts()

    def _clean(self, work: Work, kept: Sequence[Rollout]) -> None:
        """What `select_rollouts` added has not been seen by `required` plugins."""
        work.chosen = self.dispatcher.cleaned_changes(kept, work.chosen or (), work.step)
        if self.dispatcher.has_required:
            said = self.dispatcher.cleaned_texts(work.skipped.values(), "not selected")
            work.skipped = {ident: said[why] for ident, why in work.skipped.items()}
        work.is_clean = True

    def _forward_alerts(self) -> None:
        for plugin in self.dispatcher.plugins_with("rollout_metrics"):
            alerts = getattr(plugin, "alerts", None)
            while isinstance(alerts, list) and alerts:
                text = self.dispatcher.clean(str(alerts.pop(0)), "an alert that could not be searched for secrets")
                for outbox in self._outboxes:
                    outbox.alert("rollouts", text)

    def _store(self, write: Callable[[RunWriter], object], count: int) -> bool:
        """Write, counting what a failing disk costs; said once for each outage. Tries again with every batch."""
        writer = self._writer
        try:
            if writer is None:
                raise RuntimeError("the run could not be opened")  # noqa: TRY301 - counted like any other loss
            write(writer)
        except Exception as error:
            self._note_outage(error, count)
            return False
        if self._lost_in_outage is not None and count:
            logger.warning(
                "writing to %s works again; %d rollouts were lost meanwhile", writer.dir, self._lost_in_outage
            )
            self._lost_in_outage = None
        if writer.lost:
            self.counters.drop("unserialisable_field", len(writer.lost))
            writer.lost.clear()
        return True

    def _note_outage(self, error: Exception, count: int) -> None:
        self.counters.drop("store_failed", count)
        if self._lost_in_outage is None:
            self._lost_in_outage = 0
            where = self._writer.dir if self._writer else "the run's folder"
            logger.warning("cannot write to %s: %s; rollouts are lost until this is fixed", where, shown(error))
        self._lost_in_outage += count

    def _sync_store(self) -> None:
        self._store(lambda writer: writer.sync(), 0)
        self._store(lambda writer: writer.write_run(self.counters.summary()), 0)

    def _close_store(self) -> None:
        self._store(lambda writer: writer.close(self.counters.summary()), 0)
        if self._elsewhere:
            self._tell_chosen()

    def _forget_run(self) -> None:
        if any(outbox.missed for outbox in self._outboxes):
            self._store(lambda writer: writer.write_run(self.counters.summary(), ended=True), 0)
        self._writer, self._outboxes = None, []

    def _tell_chosen(self) -> None:
        """Other ranks store their rollouts without knowing that they were chosen here: few files, little memory."""
        chosen, self._elsewhere = self._elsewhere, []
        self._store(lambda writer: annotate(writer.dir, "selection", chosen), 0)


def _scope(plugin: Any) -> str:
    return str(getattr(plugin, "scope", "global"))
