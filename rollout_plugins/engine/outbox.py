"""Deliver to one sink through its own queue and thread, so that a slow or failing sink affects nobody else."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollout_hookspecs import Run, Step, Trace

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.delivery import Delivered, Delivery, are_ids, as_sink
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.error_text import error_with_place
from rollout_plugins.engine.isolation import accepted_arguments
from rollout_plugins.engine.worker import Job, Worker
from rollout_plugins.errors import RunError

logger = logging.getLogger("rollout_plugins")

#: How many generations, and how many bytes, may wait for a sink.
LIMIT, LIMIT_BYTES = 64, 2**29
#: How many different faults without lost rollouts are logged for a sink.
MAX_COMPLAINTS = 5
#: How long to wait for the disk when a sink is done.
RELEASE_SECONDS = 5.0


def is_more_than_sink(plugin: Any, dispatcher: Dispatcher) -> bool:
    """Return whether the plugin also implements hooks that run on the worker thread."""
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
        """`patience`: seconds that an export waits for others that send to the same target; None during training."""
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
        self._last = Job(self._release)
        self._has_warned = patience is not None  # an export raises the error itself
        self._complaints: set[str] = set()
        self._closed = False
        self._worker = Worker(self.name, LIMIT_BYTES)
        self._worker.start()

    def start_run(self, run: Run) -> None:
        """Queue the start of a run. A plugin with other hooks has already received `on_run_start`."""
        self._put("open", partial(self._open, Path(run.dir)))
        if not is_more_than_sink(self.plugin, self._dispatcher):
            self._put("on_run_start", partial(self._call, "on_run_start", run=run))
        if self._patience is not None:
            self._put("received", self._query_received)

    def send(self, traces: Sequence[Trace], step: Step, size: int = 0) -> None:
        """Queue traces of about `size` bytes; if the sink is too far behind, count them as missed."""
        if traces:
            self._put("export_traces", partial(self._export, tuple(traces), step), len(traces), size)

    def alert(self, title: str, text: str) -> None:
        self._put("alert", partial(as_sink(self.plugin).alert, title=title, text=text))

    def end_run(self, run: Run) -> None:
        self._put("on_run_end", partial(self._finish, run))

    def _put(self, what: str, work: Callable[[], object], traces: int = 0, size: int = 0) -> None:
        min_size = LIMIT_BYTES // LIMIT if traces else 0  # so that at most LIMIT generations fit
        job = Job(partial(self._run, what, work, traces), size=max(size, min_size), rollouts=traces)
        if traces and self._closed:
            self._count_missed(traces, "it did not finish the previous run in time")
        elif not self._worker.put(job):
            self._count_missed(traces, "its queue is full")

    def _count_missed(self, count: int, reason: str) -> None:
        if not count:
            self._complain(reason)
        elif not self._has_warned:
            self._has_warned = True
            logger.warning("sink %r misses rollouts: %s; send them later with: rollouts export", self.name, reason)
        self._counters.not_sent(self.name, count)

    def _complain(self, fault: str) -> None:
        """Log a fault that loses no rollouts, once. Faults that do lose rollouts are logged with their count."""
        if self._patience is None and fault not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints.add(fault)
            logger.warning("sink %r: %s", self.name, fault)

    # --- the sink's thread --------------------------------------------------------------------------------------

    def _run(self, what: str, work: Callable[[], object], traces: int) -> None:
        if reason := self._dispatcher.removed.get(self.name):  # until the next run starts
            self._count_missed(traces, f"it {reason}")
            return
        try:
            work()
        except BaseException as error:  # this thread must survive whatever its sink raises
            self._counters.error(self.name)
            self._count_missed(traces, f"it raised {error_with_place(error)} in {what}")
            logger.debug("sink %r failed in %s", self.name, what, exc_info=error)
            self._on_error(error)

    def _open(self, folder: Path) -> None:
        self._release()
        self._delivery = Delivery(self.plugin, folder, patience=math.inf if self._patience is None else self._patience)

    def _query_received(self) -> None:
        """Before an export, find out which rollouts the target already has."""
        assert self._delivery is not None
        self._delivery.query_received()

    def _export(self, traces: Sequence[Trace], step: Step) -> None:
        def export(ids: Collection[str]) -> Any:
            selected_ids = set(ids)
            new = tuple(trace for trace in traces if trace.rollout_id in selected_ids)
            returned = self._call("export_traces", traces=new, step=step)
            if returned is not None and not are_ids(returned):
                self._reject_result(returned)
            return returned

        assert self._delivery is not None
        ids = list(dict.fromkeys(trace.rollout_id for trace in traces))
        sent, had, foreign_id, unconfirmed = self._delivery.send(ids, export)
        before = self.delivered
        self.delivered = Delivered(before.sent + sent, before.had + had, "", before.unconfirmed + unconfirmed)
        self._run("gone", self._look_for_losses, 0)
        if foreign_id:
            self._reject_id(len(ids) - sent - had, foreign_id)

    def _finish(self, run: Run) -> None:
        self._call("on_run_end", run=run)
        self._run("gone", self._look_for_losses, 0)

    def _look_for_losses(self) -> None:
        removed = as_sink(self.plugin).gone()
        if removed:
            target = as_sink(self.plugin).target or self.name
            logger.warning("%d rollouts were removed from %s since they were sent there", removed, target)
            self._count_missed(removed, "rollouts that it had received were removed")

    def _reject_id(self, lost: int, foreign_id: str) -> None:
        """Count the rollouts whose ids the sink did not return, because whether they arrived is unknown."""
        self._counters.error(self.name)
        fault = f"it returned {foreign_id!r}, which is not the id of a rollout it was given"
        fix = "export_traces returns the rollout_id of each trace that arrived, or None for all"
        self._count_missed(lost, f"{fault}; {fix}")
        self._on_error(RunError(f"sink {self.name!r}: {fault}"))

    def _reject_result(self, result: object) -> None:
        """Log a result that is not a list of ids. The sink did not raise, so its traces count as sent."""
        self._counters.error(self.name)
        fault = f"export_traces returned {type(result).__name__}, expected a list of ids or None"
        self._complain(fault)
        self._on_error(TypeError(f"sink {self.name!r}: {fault}"))

    def _call(self, hook: str, **arguments: Any) -> Any:
        result = None
        for impl in self._implementations[hook]:
            result = impl.function(**accepted_arguments(impl, arguments))
        return result

    def _release(self) -> None:
        if self._delivery is not None:
            self._delivery.close()

    # --- the end ------------------------------------------------------------------------------------------------

    def drain(self, until: float) -> bool:
        """Wait until `until` (a `time.monotonic()`) for the queue to become empty; return whether it did.

        It waits for the same hung call only once.
        """
        was_hung = self._stuck_on is not None and self._stuck_on is self._worker.current
        is_done = self._worker.wait(0 if was_hung else until)
        self._stuck_on = self._worker.current
        return is_done

    @property
    def is_stuck(self) -> bool:
        """Whether the sink is still running a job other than the thread's last one."""
        return self._worker.current not in {None, self._last}

    def close(self, until: float) -> None:
        """Let the sink finish until `until`; count what it has not sent as missed."""
        is_done = self.drain(until)
        self._closed = True
        if not is_done:
            self._count_missed(self._worker.give_up(), "it did not finish in time")
        self._worker.put(self._last)
        if is_done:  # otherwise an export that follows would see this sink as still sending
            self._worker.wait(min(until, time.monotonic() + RELEASE_SECONDS))
        self._worker.stop()
