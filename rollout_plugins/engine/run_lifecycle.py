"""The life of a run on the worker thread: its start, each generation's way to store and sinks, and its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from rollout_hookspecs import Batch, Run

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.fault_watch import FaultWatch
from rollout_plugins.engine.findings import Findings
from rollout_plugins.engine.generation import Generation, build, step_of
from rollout_plugins.engine.hook_thread import HookThread
from rollout_plugins.engine.metric_averages import MetricAverages
from rollout_plugins.engine.outbound_filter import filter_run, filter_value
from rollout_plugins.engine.outbox import Outbox, is_more_than_sink
from rollout_plugins.engine.plugin_checks import is_required
from rollout_plugins.engine.run_storage import Storage
from rollout_plugins.engine.run_warnings import RunWarnings
from rollout_plugins.system.confidentiality import end_confidentiality, start_confidentiality
from rollout_plugins.system.labels import count as count_of

logger = logging.getLogger("rollout_plugins")

_NOT_SEARCHED = "a required plugin could not search their names for secrets"


class RunLifecycle:
    """Records one run at a time, on the worker thread. Methods for another thread say so."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        counters: Counters,
        hooks: HookThread,
        on_sink_error: Callable[[BaseException], None],
        *,
        defers_tokens: bool = False,
    ) -> None:
        """`defers_tokens`: keep tokens in memory, and store them only after a fault."""
        self.hooks = hooks
        self.storage = Storage(counters)
        self.metrics = MetricAverages()
        self.findings = Findings(dispatcher, hooks)
        self.outboxes: list[Outbox] = []
        """One for each sink, from the start of a run to its release."""
        self._dispatcher = dispatcher
        self._counters = counters
        self._on_sink_error = on_sink_error
        self.run: Run | None = None
        """The run that was started last, filtered by the required plugins."""
        self._attempt: tuple[str, int] | None = None
        self._defers_tokens = defers_tokens
        self._faults = FaultWatch()
        self._logged_step = 0
        """The step of the last log without a fault."""
        self._log_names: dict[str, str] = {}
        """Names in the trainer's log, by their unfiltered names."""
        self._warnings = RunWarnings()

    def hide_secrets(self) -> None:
        """Show exceptions without their texts during the run, if a required plugin must see what leaves."""
        if self._dispatcher.has_required:
            start_confidentiality(self)

    def show_texts_again(self) -> None:
        """Show exceptions in full again, unless a sink that is still running may raise one."""
        if not any(outbox.is_stuck for outbox in self.outboxes):
            end_confidentiality(self)

    # --- start --------------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Open the store and the sinks, and call `on_run_start`."""
        self.close_store()
        self.run = None
        if self._attempt not in {None, (run.id, run.attempt)}:
            self._counters.begin()
            self._dispatcher.begin()
        self._attempt = (run.id, run.attempt)
        self._warnings.open()
        self.run = run = self._filter_run(run)
        plugins = [plugin for _, plugin in self._dispatcher.manager.list_name_plugin()]
        seal_seconds = filter(None, (as_sink(plugin).seal_seconds for plugin in plugins))
        self.storage.open(run, min(seal_seconds, default=None))
        if self._defers_tokens:
            self._faults, self._logged_step = FaultWatch(), 0
            self.storage.defer_tokens()
        self.findings.open(run)
        if self.findings.is_wanted:
            self.storage.keep_last()
        self.outboxes = self.outboxes or self._make_outboxes(run)
        for outbox in self.outboxes:
            outbox.start_run(run)
        self._notify_start(run)

    def _make_outboxes(self, run: Run) -> list[Outbox]:
        sinks = [(plugin, as_sink(plugin).scope) for plugin in self._dispatcher.plugins_with("export_traces")]
        return [
            Outbox(plugin, self._dispatcher, self._counters, scope, self._on_sink_error)
            for plugin, scope in sinks
            if run.rank == 0 or scope != "global"
        ]

    def _filter_run(self, run: Run) -> Run:
        """Return the run as filtered by the required plugins, which see it first."""
        if not self._dispatcher.has_required:
            return run
        implementations = self._dispatcher.implementations("on_run_start")
        self.hooks.notify("on_run_start", run, [impl for impl in implementations if is_required(impl.plugin)])
        filtered: list[Run] = []
        self.hooks.run(lambda: filtered.append(filter_run(self._dispatcher, run)))
        return filtered[-1]

    def _notify_start(self, run: Run) -> None:
        """Call `on_run_start` of plugins that are neither required nor pure sinks, which get it elsewhere."""
        pure_sinks = [box.plugin for box in self.outboxes if not is_more_than_sink(box.plugin, self._dispatcher)]
        required = [plugin for plugin in self._dispatcher.plugins_with("on_run_start") if is_required(plugin)]
        self._notify("on_run_start", run, without=[*pure_sinks, *required])

    def _notify(self, hook: str, run: Run, *, without: list[Any]) -> None:
        excluded = set(map(id, without))
        implementations = self._dispatcher.implementations(hook)
        self.hooks.notify(hook, run, [impl for impl in implementations if id(impl.plugin) not in excluded])

    # --- generations --------------------------------------------------------------------------------------------

    def process(self, run: Run, batch: Batch, number: int, name: str) -> None:
        """Build the rollouts of a batch, run them through the plugins, store them and pass traces to the sinks."""
        try:
            rollouts = build(run, batch, number, name, self._counters)
        except (Exception, SystemExit) as error:
            self._counters.drop("build_failed", batch.count)
            raise RuntimeError(f"{batch.count} rollouts of step {batch.step} could not be built") from error
        generation = Generation(rollouts, step_of(run, batch, number, len(rollouts)))
        try:
            self.hooks.run(lambda: self._run_plugins(generation))
        finally:
            if self._dispatcher.has_required:
                generation.forget_unseen(self._counters)
            stored = generation.to_store()
            self.storage.write(batch.split, stored)
            self.storage.note_selection(generation.reasons_for_other_ranks())
        for outbox in self.outboxes:
            traces = generation.traces_for(outbox.scope)
            outbox.send(traces, generation.step, batch.bytes * len(traces) // max(batch.count, 1))
        self.metrics.add((batch.split, batch.dataset), generation.metrics or {})
        if (rows := self.storage.take_last()) is not None:
            self.findings.look(rows, stored, generation.step, self._alert)
        self._count_warnings()

    def _run_plugins(self, generation: Generation) -> None:
        generation.go_through(self._dispatcher, {outbox.scope for outbox in self.outboxes})
        if self.outboxes:
            self._forward_alerts()

    def _alert(self, title: str, text: str) -> None:
        for outbox in self.outboxes:
            outbox.alert(title, text)

    def _forward_alerts(self) -> None:
        for plugin in self._dispatcher.plugins_with("rollout_metrics"):
            alerts = getattr(plugin, "alerts", None)
            while isinstance(alerts, list) and alerts:
                fallback = "an alert that could not be searched for secrets"
                text = filter_value(self._dispatcher, str(alerts.pop(0)), fallback)
                for outbox in self.outboxes:
                    outbox.alert("rollouts", text)

    def count(self, add: Callable[[str, int], None], reason: str, count: int) -> None:
        """Count rollouts under a reason, which is a text like any other and passes the required plugins first."""
        texts = [reason]
        try:
            if self._dispatcher.has_required:
                texts = ["not_observed"]
                self.hooks.run(lambda: texts.append(filter_value(self._dispatcher, reason, texts[0])))
        finally:
            add(texts[-1], count)

    # --- the trainer's log --------------------------------------------------------------------------------------

    def log(self, step: int, time: float, values: Mapping[str, float | str]) -> None:
        """Store what the trainer logged, under names that passed the required plugins."""
        if self._defers_tokens and "loss" in values:
            self._watch_faults(step, values)
        if self._dispatcher.has_required:
            self._filter_names([name for name in values if name not in self._log_names])
            missing = sum(name not in self._log_names for name in values)
            if missing:  # no rollouts are lost, so this is a warning and not among the drops
                self._counters.warn(f"{count_of(missing, 'value')} of the trainer's log not stored: {_NOT_SEARCHED}")
            values = {self._log_names[name]: value for name, value in values.items() if name in self._log_names}
        if values:
            self.storage.write_log(step, time, values)
            self.findings.look_at_log(step, values, self._alert)

    def _watch_faults(self, step: int, values: Mapping[str, float | str]) -> None:
        """Store the tokens in memory if the log shows a fault; else release those that it has cleared."""
        fault = self._faults.look(values)
        if not fault:
            self.storage.discard_tokens(self._logged_step)
            self._logged_step = step
            return
        steps, dropped = self.storage.write_deferred_tokens(step)
        if steps:
            lacking = f", without {count_of(dropped, 'older rollout')}" if dropped else ""
            text = f"{fault} at step {step}: stored the tokens of steps {steps[0]} to {steps[-1]}{lacking}"
            logger.warning("%s; `rollouts replay` trains them again", text)
            self._counters.warn(text)

    def _filter_names(self, names: list[str]) -> None:
        """Let required plugins see names that were not logged before."""
        filtered: list[str] = []
        if names:
            self.hooks.run(lambda: filtered.extend(filter_value(self._dispatcher, names, [])))
        self._log_names.update(zip(names, filtered, strict=bool(filtered)))

    # --- warnings and counts ------------------------------------------------------------------------------------

    def _count_warnings(self) -> None:
        """Count the warnings since the last call, as required plugins let them be stored."""
        texts = self._warnings.take()
        if texts and self._dispatcher.has_required:
            filtered = [["a warning that could not be searched for secrets"] * len(texts)]
            self.hooks.run(lambda: filtered.append(filter_value(self._dispatcher, texts, filtered[0])))
            texts = filtered[-1]
        for text in texts:
            self._counters.warn(text)

    def seal_due(self) -> None:
        """Turn journals that are large or old enough into Parquet."""
        self.storage.seal_due()

    def sync(self) -> None:
        """Flush what is recorded to disk."""
        self._count_warnings()
        self.storage.sync()

    # --- end ----------------------------------------------------------------------------------------------------

    def notify_end(self) -> None:
        """Call `on_run_end` of every plugin but the sinks, which get it on their own threads."""
        if self.run is not None:
            self._notify("on_run_end", self.run, without=[outbox.plugin for outbox in self.outboxes])

    def end_sinks(self) -> None:
        """Queue the end of the run for each sink."""
        if self.run is not None:
            for outbox in self.outboxes:
                outbox.end_run(self.run)

    def close_store(self) -> None:
        """Seal the files of the run, and write its counts."""
        self._count_warnings()
        self.storage.close()

    def write_counts(self) -> None:
        """Write the counts of a run that is still open, on another thread, since the worker does not return."""
        if not self._dispatcher.has_required:  # plugins run on the worker alone
            self._count_warnings()
        self.storage.write_counts()

    def forget(self) -> None:
        """Write what was counted after the store was closed, and release the run."""
        self._count_warnings()
        self._warnings.close()
        self.storage.forget()

    def release(self, until: float) -> None:
        """Finish a closed run: write its last counts, and give plugins that copy its files the time that is left."""
        self.forget()
        self.outboxes = []
        if self.run is not None:
            self._notify_stored(self.run, until)
        self.hooks.stop()  # not earlier: the worker may still be using it

    def _notify_stored(self, run: Run, until: float) -> None:
        for implementation in self._dispatcher.implementations("on_run_stored"):
            self.hooks.time_limit = seconds = max(until - time.monotonic(), 0.0)
            self.hooks.notify("on_run_stored", run, [implementation], seconds=seconds)
        self.hooks.time_limit = None
