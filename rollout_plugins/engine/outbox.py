"""A sink's own thread behind a bounded queue: it may be slow, hang or raise, and only it misses anything."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollout_hookspecs import Run, Step, Trace

from rollout_plugins.content.patience import be_patient
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.delivery import Delivered, Delivery, are_ids, as_sink
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.isolation import asked_for
from rollout_plugins.engine.telling import shown
from rollout_plugins.engine.worker import Job, Worker
from rollout_plugins.errors import RunError

logger = logging.getLogger("rollout_plugins")

#: How many generations may wait for a sink, and how large all of them may be.
LIMIT, LIMIT_BYTES = 64, 2**29
#: How many different faults of a sink are told that cost no rollout.
MOST_COMPLAINTS = 5
#: How long to wait for the disk when a sink is done.
LEAVING_SECONDS = 5.0


def is_more_than_sink(plugin: Any, dispatcher: Dispatcher) -> bool:
    """Whether the plugin also works on rollouts, on the worker thread."""
    hooks = ("on_tool_call", "on_rollout", "select_rollouts", "rollout_metrics")
    return any(plugin is other for hook in hooks for other in dispatcher.plugins_with(hook))


class Outbox:
    """Delivers a run's start, its traces and its end to one sink, in order, while training or from the store."""

    def __init__(
        self,
        plugin: Any,
        dispatcher: Dispatcher,
        counters: Counters,
        scope: str,
        on_error: Callable[[BaseException], None],
        *,
        patience: float | None = None,
    ) -> None:
        """`patience`: how long an export waits for others that send to the same place; None while training."""
        self.plugin = plugin
        self.scope = scope
        self.name = dispatcher.name_of(plugin)
        self.delivered = Delivered(0, 0)
        self._on_error = on_error
        self._dispatcher = dispatcher
        self._counters = counters
        self._patience = patience
        self._implementations = {
            hook: [impl for impl in dispatcher.implementations(hook) if impl.plugin is plugin]
            for hook in ("on_run_start", "export_traces", "on_run_end")
        }
        self._delivery: Delivery | None = None
        self._stuck_on: Job | None = None
        self._last = Job(self._leave)
        self._told = patience is not None  # an export ends with the error, which tells enough
        self._complaints: set[str] = set()
        self._closed = False
        self._worker = Worker(self.name, LIMIT_BYTES)
        self._worker.start()

    def start_run(self, run: Run) -> None:
        """A plugin that does more than export was told already, before its first rollout."""
        self._put("open", partial(self._begin, Path(run.dir)))
        if not is_more_than_sink(self.plugin, self._dispatcher):
            self._put("on_run_start", partial(self._call, "on_run_start", run=run))
        if self._patience is not None:
            self._put("received", self._ask)

    def send(self, traces: Sequence[Trace], step: Step, size: int = 0) -> None:
        """Queue the traces, of some `size` in bytes; when the sink is too far behind they are counted as missed."""
        if traces:
            self._put("export_traces", partial(self._export, tuple(traces), step), len(traces), size)

    def alert(self, title: str, text: str) -> None:
        self._put("alert", partial(as_sink(self.plugin).alert, title=title, text=text))

    def end_run(self, run: Run) -> None:
        self._put("on_run_end", partial(self._end, run))

    def _put(self, what: str, work: Callable[[], object], traces: int = 0, size: int = 0) -> None:
        least = LIMIT_BYTES // LIMIT if traces else 0  # so that no more than LIMIT fit
        job = Job(partial(self._do, what, work, traces), size=max(size, least), rollouts=traces)
        if traces and self._closed:
            self._miss(traces, "it was given up on")
        elif not self._worker.put(job):
            self._miss(traces, "its queue is full")

    def _miss(self, count: int, why: str) -> None:
        if not count:
            self._complain(why)
        elif not self._told:
            self._told = True
            logger.warning("sink %r misses rollouts: %s; send them later with: rollouts export", self.name, why)
        self._counters.not_sent(self.name, count)

    def _complain(self, why: str) -> None:
        """Say what went wrong where no rollout is missing for it; that is said when one is."""
        if self._patience is None and why not in self._complaints and len(self._complaints) < MOST_COMPLAINTS:
            self._complaints.add(why)
            logger.warning("sink %r: %s", self.name, why)

    # --- the sink's thread --------------------------------------------------------------------------------------

    def _do(self, what: str, work: Callable[[], object], traces: int) -> None:
        if why := self._dispatcher.removed.get(self.name):  # the worker forgets it when the next run begins
            self._miss(traces, f"it {why}")
            return
        try:
            work()
        except BaseException as error:  # this thread serves this sink alone, and has to outlive it
            self._counters.error(self.name)
            self._miss(traces, f"it raised {shown(error)} in {what}")
            logger.debug("sink %r failed in %s", self.name, what, exc_info=error)
            self._on_error(error)

    def _begin(self, folder: Path) -> None:
        self._leave()
        self._delivery = Delivery(self.plugin, folder, patience=math.inf if self._patience is None else self._patience)

    def _ask(self) -> None:
        """Before an export, whose thread may wait for a slow reader: what the place has already."""
        be_patient()
        assert self._delivery is not None
        self._delivery.ask()

    def _export(self, traces: Sequence[Trace], step: Step) -> None:
        def export(ids: Collection[str]) -> Any:
            wanted = set(ids)
            new = tuple(trace for trace in traces if trace.rollout_id in wanted)
            said = self._call("export_traces", traces=new, step=step)
            if said is not None and not are_ids(said):
                self._object_to(said)
            return said

        assert self._delivery is not None
        ids = list(dict.fromkeys(trace.rollout_id for trace in traces))
        sent, had, foreign = self._delivery.send(ids, export)
        self.delivered = Delivered(self.delivered.sent + sent, self.delivered.had + had)
        self._do("gone", self._look_for_losses, 0)
        if foreign:
            self._blame(len(ids) - sent - had, foreign)

    def _end(self, run: Run) -> None:
        self._call("on_run_end", run=run)
        self._do("gone", self._look_for_losses, 0)

    def _look_for_losses(self) -> None:
        gone = as_sink(self.plugin).gone()
        if gone:
            place = as_sink(self.plugin).target or self.name
            logger.warning("%d rollouts were removed from %s since they were sent there", gone, place)
            self._miss(gone, "what it was sent is no longer there")

    def _blame(self, lost: int, foreign: str) -> None:
        """It cannot be known what arrived of the rollouts whose ids the sink did not return."""
        self._counters.error(self.name)
        why = f"it returned {foreign!r}, which is not the id of a rollout it was given"
        self._miss(lost, f"{why}; export_traces returns the rollout_id of each trace that arrived, or None for all")
        self._on_error(RunError(f"sink {self.name!r}: {why}"))

    def _object_to(self, said: object) -> None:
        """It did not raise, so what it was given counts as sent."""
        self._counters.error(self.name)
        why = f"export_traces returned {type(said).__name__}, expected a list of ids or None"
        self._complain(why)
        self._on_error(TypeError(f"sink {self.name!r}: {why}"))

    def _call(self, hook: str, **arguments: Any) -> Any:
        result = None
        for impl in self._implementations[hook]:
            result = impl.function(**asked_for(impl, arguments))
        return result

    def _leave(self) -> None:
        if self._delivery is not None:
            self._delivery.close()

    # --- the end ------------------------------------------------------------------------------------------------

    def drain(self, until: float) -> bool:
        """Wait for the queue to empty, until a `time.monotonic()`; whether it did. A hung sink is waited for once."""
        is_waited_for = self._stuck_on is None or self._stuck_on is not self._worker.current
        done = self._worker.wait(until if is_waited_for else 0)
        self._stuck_on = self._worker.current
        return done

    @property
    def is_stuck(self) -> bool:
        """Whether the sink is still at work. After it, its thread lets go of what we had open for it."""
        return self._worker.current not in {None, self._last}

    def close(self, until: float) -> None:
        """Let it finish until then; what it has not sent counts as missed."""
        done = self.drain(until)
        self._closed = True
        if not done:
            self._miss(self._worker.give_up(), "it did not finish in time")
        self._worker.put(self._last)
        if done:  # an export that follows would think that this still sends
            self._worker.wait(min(until, time.monotonic() + LEAVING_SECONDS))
        self._worker.stop()
