"""Run plugins through the real pipeline, on rollouts that a test created."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pluggy
from rollout_hookspecs import Batch, Drop, Finding, Panel, Rollout, Run, Step, Trace, hookimpl

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.installed import DISTRIBUTION
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.reading.panels import Panels
from rollout_plugins.testing._records import make_run

COLLECTOR = "testing-collector"
_ANSWERING = ("on_tool_call", "on_rollout", "select_rollouts", "rollout_metrics", "format_trace")


@dataclass(frozen=True)
class PluginError:
    """An error of a plugin, or a violation of the contract."""

    plugin: str
    """The plugin's name."""
    hook: str
    """The hook in which it happened."""
    error: BaseException
    """The exception that it raised, or one that describes the violation."""

    def __str__(self) -> str:
        return f"in {self.hook} of plugin {self.plugin!r}"


@dataclass(frozen=True)
class Result:
    """The result of a run, with rollouts in the order they were passed in."""

    rollouts: list[Rollout] = field(default_factory=list)
    """The rollouts as stored: transformed, with `marks` that state which plugin left them out of the sinks."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Rollouts that a plugin discarded: id → reason."""
    selected: list[Rollout] = field(default_factory=list)
    """The rollouts that were selected for the sinks."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Rollouts that are stored but were left out of the sinks: id → which plugin did it, and why."""
    traces: list[Trace] = field(default_factory=list)
    """The traces that the sinks received."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics as they are added to the trainer's log: `rollouts/<name>` and `eval_rollouts/<name>`."""
    errors: list[PluginError] = field(default_factory=list)
    """Errors of plugins; empty unless `strict=False`."""
    drops: dict[str, int] = field(default_factory=dict)
    """Everything that was lost, counted by reason, as in `run.json`."""
    unsent: dict[str, int] = field(default_factory=dict)
    """How many rollouts each sink missed; the store has them."""
    findings: list[Finding] = field(default_factory=list)
    """The findings of checks, the most severe first."""


def run_plugins(
    plugins: Sequence[Any] | None,
    rollouts: Iterable[Rollout],
    *,
    run: Run | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - as the callback calls it
    strict: bool = True,
    seconds: float = 60.0,
) -> Result:
    """Process rollouts as a training run does, on this thread, with these plugins and no others.

    The rollouts of each `(split, step)` form one generation batch. The library numbers them and assigns their ids, as
    it does in training. A sink still works on its own thread; the end of its work is awaited after each batch.

    Args:
        plugins: instances or names, as for `RolloutPluginCallback`.
        rollouts: the rollouts, see `make_rollout` and `hostile_rollouts`.
        run: the run, see `make_run`; for example one with `rank=1, world_size=2`.
        config: options for plugins given by name.
        dir: folder for the run, which `open_run(dir)` opens; without it, the run is deleted.
        strict: raise the first error of a plugin, including a record that it changed in place, and errors of sinks.
        seconds: how long a sink may take.
    """
    loaded = Plugins(collecting(plugins), config=config, autoload=False)
    with TemporaryDirectory() as temporary:
        run = run or make_run()
        run = replace(run, dir=run.dir or str(Path(dir or temporary) / run.id))
        return run_loaded(loaded, run, list(rollouts), seconds, strict=strict)


def collecting(plugins: Sequence[Any] | None) -> list[Any]:
    """Return these plugins and a sink that collects the traces."""
    return [*(plugins or ()), _Collector()]


def run_loaded(
    loaded: Plugins, run: Run, rollouts: Sequence[Rollout], seconds: float, *, strict: bool = True
) -> Result:
    """Run plugins that are already loaded, and may have been used in other runs."""
    result = Result()
    pipeline = Pipeline(
        loaded, sync=True, strict=True, end_seconds=seconds, make_dispatcher=partial(_RecordingDispatcher, result)
    )
    dispatcher = cast("_RecordingDispatcher", pipeline.dispatcher)
    _run_pipeline(pipeline, result, run, rollouts, seconds)
    if strict and result.errors:
        _raise(result.errors[0])
    _warn_of_missing_returns(dispatcher, loaded)
    return result


def show_panels(plugins: Sequence[Any], rollout: Rollout, *, run: Run | None = None) -> tuple[Panel, ...]:
    """Return the panels that `rollouts view` and `rollouts report` show of the rollout with these plugins only."""
    return Panels(plugins, autoload=False, strict=True).of(rollout, run or make_run())


def _raise(error: PluginError) -> None:
    if hasattr(error.error, "add_note"):  # Python 3.11
        error.error.add_note(str(error))
    raise error.error


def _warn_of_missing_returns(watch: _RecordingDispatcher, loaded: Plugins) -> None:
    """Warn of hooks of the user's own plugins that never returned anything, as with a missing `return`."""
    for (name, hook), answered in watch.answered.items():
        if not answered and name in loaded.installed and loaded.installed[name].distribution != DISTRIBUTION:
            warnings.warn(
                f"{hook} of plugin {name!r} returned None every time, so it had no effect: is a `return` missing? "
                "Annotate it with `-> None` if it is not meant to return anything",
                stacklevel=4,
            )


def _run_pipeline(pipeline: Pipeline, result: Result, run: Run, rollouts: Sequence[Rollout], seconds: float) -> None:
    sinks = pipeline.dispatcher.plugins_with("export_traces")
    collector = next(plugin for plugin in sinks if isinstance(plugin, _Collector))
    pipeline.start(run)
    try:
        for batch in _batches(rollouts):
            pipeline.submit(batch)
            pipeline.drain(seconds)
        result.metrics.update(_metrics(pipeline))
    finally:
        pipeline.close()
    result.traces.extend(collector.traces)
    result.drops.update(pipeline.counters.drops)
    result.unsent.update(pipeline.counters.unsent)
    result.findings.extend(pipeline.findings_of(run))
    result.errors.extend(_sink_errors(pipeline, result))
    result.errors.extend(_late_sinks(result, seconds))


def _batches(rollouts: Sequence[Rollout]) -> Iterator[Batch]:
    for _, group in groupby(rollouts, key=lambda rollout: (rollout.split, rollout.step)):
        yield _batch([replace(rollout, index=index) for index, rollout in enumerate(group)])


def _batch(rollouts: list[Rollout]) -> Batch:
    return Batch(
        build=lambda: rollouts,
        split=rollouts[0].split,
        step=rollouts[0].step,
        count=len(rollouts),
        gathered=len({rollout.rank for rollout in rollouts}) > 1,
    )


def _metrics(pipeline: Pipeline) -> dict[str, float]:
    return {
        f"{prefix}/{name}": value
        for split, prefix in (("train", "rollouts"), ("eval", "eval_rollouts"))
        for name, value in pipeline.pop_metrics(split).items()
    }


def _sink_errors(pipeline: Pipeline, result: Result) -> Iterable[PluginError]:
    """Yield the errors of a sink's results; exceptions of plugins are recorded already."""
    try:
        pipeline.raise_strict()
    except Exception as error:
        if not any(recorded.error is error for recorded in result.errors):
            names = {recorded.plugin for recorded in result.errors}
            name = next((name for name in pipeline.counters.errors if name not in names), "")
            yield PluginError(name, "export_traces", error)


def _late_sinks(result: Result, seconds: float) -> Iterable[PluginError]:
    """Yield an error for each sink that did not finish in time without raising."""
    names = {error.plugin for error in result.errors}
    for name in result.unsent:
        if name not in names:
            yield PluginError(name, "export_traces", TimeoutError(f"it did not finish within {seconds:g} s"))


class _Collector:
    """The sink that collects traces for the result."""

    name = COLLECTOR
    scope = "rank"

    def __init__(self) -> None:
        self.on_run_start()

    @hookimpl
    def on_run_start(self) -> None:
        self.traces: list[Trace] = []

    @hookimpl(trylast=True)
    def export_traces(self, traces: Sequence[Trace]) -> None:
        self.traces.extend(traces)


class _RecordingDispatcher(Dispatcher):
    """Records every hook call and every contract violation."""

    def __init__(self, result: Result, manager: pluggy.PluginManager, counters: Counters, *, strict: bool) -> None:
        super().__init__(manager, counters)  # not strict: the result has the errors, and the next plugin runs
        self._result = result
        self._drop_reason = ""
        self.answered: dict[tuple[str, str], bool] = {}
        """By plugin and hook, whether it ever returned anything but None, or need not."""

    def implementations(self, hook: str) -> list[Any]:
        return [self._watched(impl, hook) for impl in super().implementations(hook)]

    def _watched(self, impl: Any, hook: str) -> Any:
        annotation = getattr(impl.function, "__annotations__", {}).get("return", "")
        needs_no_result = hook not in _ANSWERING or annotation in (None, "None")
        place = (impl.plugin_name, hook)

        def function(**arguments: Any) -> Any:
            with self._watching(impl.plugin_name, hook, arguments):
                before, self.answered[place] = self.answered.get(place, False), True
                result = impl.function(**arguments)
                self.answered[place] = before or needs_no_result or result is not None
                return result

        facts = {name: getattr(impl, name) for name in ("plugin", "plugin_name", "argnames", "kwargnames")}
        return SimpleNamespace(function=function, **facts)

    @contextmanager
    def _watching(self, name: str, hook: str, arguments: Mapping[str, Any]) -> Iterator[None]:
        before = content_hash(arguments)
        try:
            yield
        except Drop as drop:
            self._drop_reason = f"{name}: {drop.reason}"
            raise
        except BaseException as error:  # like the library, because plugins raise more than Exception
            self._record(name, hook, error)
            raise
        finally:
            if content_hash(arguments) != before:
                fault = "changed its arguments in place; create a new record with dataclasses.replace"
                self._record(name, hook, TypeError(fault))

    def _record(self, name: str, hook: str, error: BaseException) -> None:
        if not any(recorded.error is error for recorded in self._result.errors):
            self._result.errors.append(PluginError(name, hook, error))

    def failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        self._record(self.name_of(plugin), hook, error)
        super().failed(plugin, hook, error)

    def indices_to_process(self, rollouts: Sequence[Rollout]) -> Sequence[int]:
        """Return all rollouts, in order to record each."""
        return range(len(rollouts))

    def rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        transformed = super().rollout(rollout, step)
        if transformed is None:
            self._result.dropped[rollout.id] = self._drop_reason
        else:
            self._result.rollouts.append(transformed)
        return transformed

    def select(self, rollouts: Sequence[Rollout], step: Step) -> tuple[list[Rollout], dict[str, str]]:
        selected, skipped = super().select(rollouts, step)
        self._result.selected.extend(selected)
        self._result.skipped.update(skipped)
        marks = {rollout.id: rollout.marks for rollout in selected}
        for index, rollout in enumerate(self._result.rollouts):
            if rollout.id in marks:
                self._result.rollouts[index] = replace(rollout, marks=marks[rollout.id])
            elif rollout.id in skipped:
                new_marks = {**rollout.marks, "sinks": skipped[rollout.id]}
                self._result.rollouts[index] = replace(rollout, marks=new_marks)
        return selected, skipped
