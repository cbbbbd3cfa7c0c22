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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Batch, Run

from rollout_plugins.content.discretion import be_discreet, be_open
from rollout_plugins.content.names import BatchNames
from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine import environment
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.ending import Ending
from rollout_plugins.engine.figures import Figures, lost
from rollout_plugins.engine.generation import Generation, build, step_of
from rollout_plugins.engine.leaving import clean, cleaned_run
from rollout_plugins.engine.outbox import Outbox, is_more_than_sink
from rollout_plugins.engine.storage import Storage
from rollout_plugins.engine.telling import is_required, shown
from rollout_plugins.engine.worker import Job, ReplaceableThread, Worker
from rollout_plugins.errors import SetupError

logger = logging.getLogger("rollout_plugins")

QUEUE_BYTES = 2 * 2**30
HANG_SECONDS = 60.0
SINK_SECONDS = 20.0
LEAVING_SECONDS = 5.0
#: Of the limit for the end of a run: what the queue may take, and what the store and the sinks may have then.
QUEUE_SHARE, LAST_WORDS_SHARE = 5 / 6, 11 / 12
#: Of the limit, where it is long, what one sink may take.
SINK_SHARE = 2 / 3


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
        self.dispatcher = Dispatcher(plugins.manager, counters, strict=strict)
        self.run: Run | None = None
        self.generation = 0
        self.submitted: Counter[str] = Counter()
        self.hand_over_rest: Callable[[], object] = lambda: None
        """Asks the host for what it keeps back; called when nothing more will happen to that in this run."""
        self._names = BatchNames()
        self._sync = sync
        self._strict = strict
        self._hang_seconds = environment.seconds("HANG_SECONDS", HANG_SECONDS)
        self._ending = Ending(end_seconds)
        self._begun: tuple[str, int] | None = None
        self._shown_run: Run | None = None
        self._storage = Storage(counters)
        self._outboxes: list[Outbox] = []
        self._worker = Worker(
            "worker",
            queue_bytes,
            block=on_full == "block",
            came_back=lambda late: counters.drop("not_finished_at_end", -late.rollouts),  # it counted its own losses
        )
        self._hooks: ReplaceableThread | None = None
        self._last_seconds: float | None = None
        self._error: BaseException | None = None
        self._figures = Figures()
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
        if self.run is not None:  # an attempt that broke off
            self.hand_over_rest()
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
        """Take one generation batch. Never waits, unless `on_full` is "block"."""
        run = self.run
        if run is None or self.is_elsewhere:
            return
        with self._lock:  # a trainer may generate on several threads
            generation, name = self.generation, self._names.name(run, batch.split, batch.step)
            self.generation += 1
        self._ending.goes_on()
        self.submitted[batch.split] += batch.count
        self.counters.spent("training_thread", batch.seconds)
        self._put(lambda: self._process(run, batch, generation, name), batch.bytes, batch.count)

    def _put(self, work: Callable[[], None], size: int = 0, rollouts: int = 0) -> None:
        if self._sync:
            self._attempt(work)
        elif self._is_put(Job(partial(self._attempt, work), size, rollouts)):
            self.counters.queued(max(size, self._worker.size))  # it may be done by now
        else:
            self._drop_full(rollouts)

    def _is_put(self, job: Job) -> bool:
        try:
            return self._worker.put(job)
        except BaseException:  # Ctrl-C where it blocks
            self.counters.drop("queue_full", job.rollouts)
            raise

    def _drop_full(self, count: int) -> None:
        if not self.counters.drops["queue_full"]:
            behind = self._worker.size >> 20
            logger.warning("recording is %d MB behind; the newest rollouts are left out until it catches up", behind)
        self.counters.drop("queue_full", count)

    def count(self, reason: str, count: int, *, is_stored: bool = False) -> None:
        """Count rollouts that a host could not hand over, or (`is_stored`) did and its trainer left out.

        In turn with those it hands over, so that each attempt has its own.
        """
        counted = self.counters.left_out if is_stored else self.counters.drop
        if not self.is_elsewhere:
            work = partial(self._count, counted, str(reason), int(count))
            self._put(work, rollouts=0 if is_stored else int(count))

    def later(self, work: Callable[[], None]) -> None:
        """Do something on the worker thread, after what is queued; nothing before the run starts or after it ends."""
        if self.run is not None and not self.is_elsewhere:
            self._put(work)

    def request_sync(self) -> None:
        """Have the disk keep what there is, soon; does not wait."""
        self.later(self._storage.sync)

    def drain(self, seconds: float, *, sinks: bool = True) -> bool:
        """Wait at most that long until the store and the sinks have everything; returns whether they do."""
        return self._drain(time.monotonic() + seconds, sinks=sinks)

    def drain_at_end(self, *, sinks: bool = True) -> bool:
        """The same where a training ends; this and `close` wait no longer than the limit, together."""
        self.hand_over_rest()
        with self._ending.waiting() as until:
            return self._drain(until(QUEUE_SHARE), sinks=sinks)

    def _drain(self, until: float, *, sinks: bool) -> bool:
        if self.is_elsewhere:
            return False
        done = self._worker.wait(until)
        for outbox in self._outboxes if sinks else ():
            done = outbox.drain(self._until_hung(until)) and done
        return done

    def _until_hung(self, until: float) -> float:
        """How long one sink is waited for, which may not take all the time that there is from the others."""
        return min(until, time.monotonic() + max(SINK_SECONDS, SINK_SHARE * self._ending.seconds))

    def raise_strict(self) -> None:
        """With strict=True, raise what a plugin raised since the last call. Nothing else here ever raises it."""
        if self._strict and self._error is not None:
            error, self._error = self._error, None
            raise error

    # --- what it knows ------------------------------------------------------------------------------------------

    def pop_metrics(self, split: str, dataset: str = "") -> dict[str, float]:
        """What `rollout_metrics` said since the last call, averaged over the generations."""
        return {} if self.is_elsewhere else self._figures.pop((split, dataset), self.dispatcher.headlines)

    def said_metrics(self) -> dict[str, float]:
        """What the log has of recording itself: what was lost, and where a plugin wants every number, the rest too."""
        if self.dispatcher.is_verbose:
            return self.own_metrics()
        return lost(dict(self.counters.drops), dict(self.counters.unsent))

    def own_metrics(self) -> dict[str, float]:
        """What recording itself costs and loses, so far."""
        kinds = ("training_thread", "worker")
        figures = {f"seconds/{kind}": float(self.counters.seconds[kind]) for kind in kinds}
        figures["queue_bytes"] = float(self._worker.size)
        if self._storage.bytes is not None:
            figures["bytes_written"] = float(self._storage.bytes)
        for kind in ("skipped", "untrained", "unsent", "drops"):
            counts = dict(getattr(self.counters, kind))
            figures |= {f"{kind}/{reason}": float(count) for reason, count in counts.items()}
        return figures

    @property
    def end_seconds(self) -> float:
        """How long the end of a run may wait."""
        return self._ending.seconds

    @property
    def has_metrics(self) -> bool:
        return bool(self.dispatcher.implementations("rollout_metrics"))

    @property
    def has_global_sinks(self) -> bool:
        """Whether a sink wants to see the rollouts of all ranks on rank 0."""
        return any(_scope(plugin) == "global" for plugin in self.dispatcher.plugins_with("export_traces"))

    # --- the end of a run ---------------------------------------------------------------------------------------

    def close(self) -> Run | None:
        """End the run: everything stored, sinks told. What does not finish in time is counted.

        Returns the run that ended: what a host kept back may have begun it just now.
        """
        if self.is_elsewhere:
            return None
        if threading.current_thread().name.startswith("rollouts-"):  # the garbage collector chose one of our threads
            threading.Thread(target=self.close, name="closing-rollouts").start()
            return None
        self.hand_over_rest()
        run, self.run = self.run, None
        if run is not None:
            with self._ending.waiting() as until:
                try:
                    self._close(run, until)
                except BaseException:  # Ctrl-C again: whoever sends it wants to leave
                    self._leave()
                    raise
            self._worker.stop()
        return run

    def _leave(self) -> None:
        """Nobody waits for the end any more: what is not done yet is counted, and the run says so."""
        self._last_seconds = 0.0
        self._give_up()
        for outbox in self._outboxes:
            outbox.close(0)
        self._put(self._storage.close)
        self._put(self._storage.forget)
        self._worker.wait(time.monotonic() + LEAVING_SECONDS)
        self._worker.stop()

    def _close(self, run: Run, until: Callable[[float], float]) -> None:
        self._put(lambda: self._tell_others("on_run_end", self._shown_run or run))
        if not self._worker.wait(until(QUEUE_SHARE)):
            self._give_up()
        for outbox in self._outboxes:  # there are none before the run has begun
            outbox.end_run(self._shown_run or run)
        self._put(self._storage.close)
        self._worker.wait(until(LAST_WORDS_SHARE))
        for outbox in self._outboxes:
            outbox.close(self._until_hung(until(LAST_WORDS_SHARE)))
        if not any(outbox.is_stuck for outbox in self._outboxes):  # one that comes back may raise
            be_open(self)
        self._put(partial(self._forget_run, self._shown_run or run, until))
        self._worker.wait(until(1) + self._ending.grace)

    def _give_up(self) -> None:
        left = self._worker.give_up()
        self.counters.drop("not_finished_at_end", left)
        if left:
            logger.warning("recording did not finish in time; %d rollouts are not in the store", left)

    def _forget_run(self, run: Run, until: Callable[[float], float]) -> None:
        self._storage.forget()
        self._outboxes = []
        self._tell_stored(run, until(1))
        if self._hooks is not None:  # not sooner: the worker may still be at work with it
            self._hooks.stop()
            self._hooks = None

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
        if self._sync or not self._has_plugins:
            function()
            return
        self._hooks = self._hooks or ReplaceableThread("hooks")
        while not self._hooks.run(function, self._take_out_hung, min(0.5, self._hang_seconds / 4)):
            pass

    @property
    def _all_plugins(self) -> list[Any]:
        return [plugin for _, plugin in self.dispatcher.manager.list_name_plugin()]

    @property
    def _has_plugins(self) -> bool:
        """Whether there is anything that could hang; a thread for it is only made then. Hosts run elsewhere."""
        others = (plugin for plugin in self._all_plugins if not isinstance(plugin, DefaultTrace))
        callers = (caller for plugin in others for caller in self.dispatcher.manager.get_hookcallers(plugin) or ())
        return any(caller.name != "register_hosts" for caller in callers)

    def _take_out_hung(self) -> bool:
        seconds = self._hang_seconds
        if self._last_seconds is not None:
            seconds = self._last_seconds + 1
        elif self._ending.has_begun:  # or nothing would be stored that waits behind it
            seconds = min(seconds, max(self._ending.seconds / 3, 1.0))
        call = self.dispatcher.give_up_after(seconds)
        if call is None:
            return False
        why = f"did not return from {call.hook} within {seconds:g} s"
        self.dispatcher.remove(call.plugin_name, f"{why} (ROLLOUT_PLUGINS_HANG_SECONDS sets the limit)")
        return True

    def _start_run(self, run: Run) -> None:
        self._storage.close()
        if self._begun not in {None, (run.id, run.attempt)}:
            self.counters.begin()
            self.dispatcher.begin()
        self._begun = (run.id, run.attempt)
        run = self._shown_run = self._cleaned_run(run)
        self._storage.open(run, min(filter(None, map(_seal_seconds, self._all_plugins)), default=None))
        self._outboxes = self._outboxes or [
            Outbox(plugin, self.dispatcher, self.counters, _scope(plugin), self._note_error)
            for plugin in self.dispatcher.plugins_with("export_traces")
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
        self._with_hooks(lambda: made.append(cleaned_run(self.dispatcher, run)))
        return made[-1]

    def _tell_others(self, hook: str, run: Run) -> None:
        """Tell plugins of a run, without those that hear of it on their own threads, or heard of it already."""
        if hook == "on_run_end":
            told = [box.plugin for box in self._outboxes]
        else:
            told = [plugin for plugin in self.dispatcher.plugins_with(hook) if is_required(plugin)]
            told += [box.plugin for box in self._outboxes if not is_more_than_sink(box.plugin, self.dispatcher)]
        known = set(map(id, told))
        self._tell(hook, run, [i for i in self.dispatcher.implementations(hook) if id(i.plugin) not in known])

    def _tell(self, hook: str, run: Run, waiting: list[Any], **more: Any) -> None:
        def tell() -> None:
            while waiting:
                self.dispatcher.call(waiting.pop(0), hook, {"run": run, **more})

        self._with_hooks(tell)

    def _tell_stored(self, run: Run, until: float) -> None:
        """Plugins that take the run's files elsewhere may use all the time that is left."""
        for impl in self.dispatcher.implementations("on_run_stored"):
            self._last_seconds = seconds = max(until - time.monotonic(), 0.0)
            self._tell("on_run_stored", run, [impl], seconds=seconds)
        self._last_seconds = None

    def _count(self, counted: Callable[[str, int], None], reason: str, count: int) -> None:
        """The reason is a text like any other: it goes where `required` plugins let it."""
        said = [reason]
        try:
            if self.dispatcher.has_required:
                said = ["not_observed"]
                self._with_hooks(lambda: said.append(clean(self.dispatcher, reason, said[0])))
        finally:
            counted(said[-1], count)

    def _process(self, run: Run, batch: Batch, number: int, name: str) -> None:
        try:
            raw = build(run, batch, number, name, self.counters)
        except (Exception, SystemExit) as error:
            self.counters.drop("build_failed", batch.count)
            raise RuntimeError(f"{batch.count} rollouts of step {batch.step} could not be built") from error
        generation = Generation(raw, step_of(run, batch, number, len(raw)))
        try:
            self._with_hooks(lambda: self._through_plugins(generation))
        finally:
            if self.dispatcher.has_required:
                generation.forget_unseen(self.counters)
            self._storage.write(batch.split, generation.to_store())
            self._storage.note_chosen(generation.chosen_elsewhere())
        for outbox in self._outboxes:
            traces = generation.traces_for(outbox.scope)
            outbox.send(traces, generation.step, batch.bytes * len(traces) // max(batch.count, 1))
        self._figures.add((batch.split, batch.dataset), generation.metrics or {})

    def _through_plugins(self, generation: Generation) -> None:
        generation.go_through(self.dispatcher, {outbox.scope for outbox in self._outboxes})
        if self._outboxes:
            self._forward_alerts()

    def _forward_alerts(self) -> None:
        for plugin in self.dispatcher.plugins_with("rollout_metrics"):
            alerts = getattr(plugin, "alerts", None)
            while isinstance(alerts, list) and alerts:
                unclear = "an alert that could not be searched for secrets"
                text = clean(self.dispatcher, str(alerts.pop(0)), unclear)
                for outbox in self._outboxes:
                    outbox.alert("rollouts", text)


def _import_pandas() -> None:
    """PyArrow does it with its first array. On a thread of ours, a child forked meanwhile could never import it."""
    with suppress(Exception):
        pa.array([0])


def _scope(plugin: Any) -> str:
    return as_sink(plugin).scope


def _seal_seconds(plugin: Any) -> float | None:
    return as_sink(plugin).seal_seconds
