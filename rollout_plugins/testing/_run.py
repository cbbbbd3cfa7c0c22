"""Run plugins through the real pipeline, on rollouts a test made."""

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
    """A plugin did something it must not do."""

    plugin: str
    """Its name."""
    hook: str
    """Where."""
    error: BaseException
    """What it raised, or what is wrong with its result."""

    def __str__(self) -> str:
        return f"in {self.hook} of plugin {self.plugin!r}"


@dataclass(frozen=True)
class Result:
    """What became of the rollouts, in the order they were given."""

    rollouts: list[Rollout] = field(default_factory=list)
    """As the store has them: transformed, with `marks` that say who left them out of the sinks."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Rollouts that a plugin discarded: id → reason."""
    selected: list[Rollout] = field(default_factory=list)
    """As they went on to the sinks."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Rollouts that are stored but were left out of the sinks: id → who did it, and why."""
    traces: list[Trace] = field(default_factory=list)
    """What the sinks were given."""
    metrics: dict[str, float] = field(default_factory=dict)
    """As they join the trainer's log: `rollouts/<name>` and `eval_rollouts/<name>`."""
    errors: list[PluginError] = field(default_factory=list)
    """Empty unless `strict=False`."""
    drops: dict[str, int] = field(default_factory=dict)
    """Everything lost, counted by reason, as in `run.json`."""
    unsent: dict[str, int] = field(default_factory=dict)
    """Rollouts that a sink missed, by sink; the store has them."""
    findings: list[Finding] = field(default_factory=list)
    """What checks found, the most severe first."""


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
    """Do what a training run does with the rollouts, on this thread, with these plugins and no others.

    Each `(split, step)` in turn is one generation batch. The library numbers its rollouts and gives them their ids,
    as it does in training. A sink still works on a thread of its own; it is waited for after each batch.

    Args:
        plugins: instances or names, as for `RolloutPluginCallback`.
        rollouts: what the trainer made, see `make_rollout` and `hostile_rollouts`.
        run: the run, see `make_run`; for example one with `rank=1, world_size=2`.
        config: options for plugins given by name.
        dir: folder to keep the run in, for `open_run(dir)`; otherwise it is thrown away.
        strict: raise the first error of a plugin. That includes changing a record in place, and errors of sinks.
        seconds: how long a sink may take.
    """
    loaded = Plugins(collecting(plugins), config=config, autoload=False)
    with TemporaryDirectory() as temporary:
        run = run or make_run()
        run = replace(run, dir=run.dir or str(Path(dir or temporary) / run.id))
        return run_loaded(loaded, run, list(rollouts), seconds, strict=strict)


def collecting(plugins: Sequence[Any] | None) -> list[Any]:
    """These plugins and a sink to look into."""
    return [*(plugins or ()), _Collector()]


def run_loaded(
    loaded: Plugins, run: Run, rollouts: Sequence[Rollout], seconds: float, *, strict: bool = True
) -> Result:
    """One run with plugins that are loaded, and may have been in others."""
    result = Result()
    pipeline = Pipeline(loaded, sync=True, strict=True, end_seconds=seconds, make_dispatcher=partial(_Watch, result))
    watch = cast("_Watch", pipeline.dispatcher)
    _through(pipeline, result, run, rollouts, seconds)
    if strict and result.errors:
        _raise(result.errors[0])
    _warn_of_forgotten(watch, loaded)
    return result


def show_panels(plugins: Sequence[Any], rollout: Rollout, *, run: Run | None = None) -> tuple[Panel, ...]:
    """What `rollouts view` and `rollouts report` show of the rollout with these plugins and no others."""
    return Panels(plugins, autoload=False, strict=True).of(rollout, run or make_run())


def _raise(found: PluginError) -> None:
    if hasattr(found.error, "add_note"):  # Python 3.11
        found.error.add_note(str(found))
    raise found.error


def _warn_of_forgotten(watch: _Watch, loaded: Plugins) -> None:
    """Say which hooks of the author's own plugins never returned anything: Python does so for a missing `return`."""
    for (name, hook), answered in watch.answered.items():
        if not answered and name in loaded.installed and loaded.installed[name].distribution != DISTRIBUTION:
            warnings.warn(
                f"{hook} of plugin {name!r} returned None every time, so nothing came of it: is a `return` missing? "
                "Annotate it with `-> None` if it only looks on",
                stacklevel=4,
            )


def _through(pipeline: Pipeline, result: Result, run: Run, rollouts: Sequence[Rollout], seconds: float) -> None:
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
    result.findings.extend(pipeline.findings_of(run))
    result.drops.update(pipeline.counters.drops)
    result.unsent.update(pipeline.counters.unsent)
    result.errors.extend(_wrong_answers(pipeline, result))
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


def _wrong_answers(pipeline: Pipeline, result: Result) -> Iterable[PluginError]:
    """What a sink returned and should not have; what plugins raised is known."""
    try:
        pipeline.raise_strict()
    except Exception as error:
        if not any(known.error is error for known in result.errors):
            known = {found.plugin for found in result.errors}
            name = next((name for name in pipeline.counters.errors if name not in known), "")
            yield PluginError(name, "export_traces", error)


def _late_sinks(result: Result, seconds: float) -> Iterable[PluginError]:
    """A sink that raises nothing may still not have finished."""
    known = {error.plugin for error in result.errors}
    for name in result.unsent:
        if name not in known:
            yield PluginError(name, "export_traces", TimeoutError(f"it did not finish within {seconds:g} s"))


class _Collector:
    """The sink that a test looks into."""

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


class _Watch(Dispatcher):
    """Notes what passes, and what each plugin does that it must not do."""

    def __init__(self, result: Result, manager: pluggy.PluginManager, counters: Counters, *, strict: bool) -> None:
        super().__init__(manager, counters)  # not strict: an error is in the result, and the next plugin runs
        self._result = result
        self._why = ""
        self.answered: dict[tuple[str, str], bool] = {}
        """By plugin and hook, whether it ever did anything but return None."""

    def implementations(self, hook: str) -> list[Any]:
        return [self._watched(impl, hook) for impl in super().implementations(hook)]

    def _watched(self, impl: Any, hook: str) -> Any:
        said = getattr(impl.function, "__annotations__", {}).get("return", "")
        looks_on = hook not in _ANSWERING or said in (None, "None")
        place = (impl.plugin_name, hook)

        def function(**arguments: Any) -> Any:
            with self._watching(impl.plugin_name, hook, arguments):
                before, self.answered[place] = self.answered.get(place, False), True
                result = impl.function(**arguments)
                self.answered[place] = before or looks_on or result is not None
                return result

        facts = {name: getattr(impl, name) for name in ("plugin", "plugin_name", "argnames", "kwargnames")}
        return SimpleNamespace(function=function, **facts)

    @contextmanager
    def _watching(self, name: str, hook: str, arguments: Mapping[str, Any]) -> Iterator[None]:
        before = content_hash(arguments)
        try:
            yield
        except Drop as drop:
            self._why = f"{name}: {drop.reason}"
            raise
        except BaseException as error:  # as the library does: plugins raise more than Exception
            self._note(name, hook, error)
            raise
        finally:
            if content_hash(arguments) != before:
                why = "changed what it was given in place; make a new record with dataclasses.replace"
                self._note(name, hook, TypeError(why))

    def _note(self, name: str, hook: str, error: BaseException) -> None:
        if not any(known.error is error for known in self._result.errors):
            self._result.errors.append(PluginError(name, hook, error))

    def failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        self._note(self.name_of(plugin), hook, error)
        super().failed(plugin, hook, error)

    def wanted(self, rollouts: Sequence[Rollout]) -> Sequence[int]:
        """All of them, to note each."""
        return range(len(rollouts))

    def rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        made = super().rollout(rollout, step)
        if made is None:
            self._result.dropped[rollout.id] = self._why
        else:
            self._result.rollouts.append(made)
        return made

    def select(self, rollouts: Sequence[Rollout], step: Step) -> tuple[list[Rollout], dict[str, str]]:
        chosen, skipped = super().select(rollouts, step)
        self._result.selected.extend(chosen)
        self._result.skipped.update(skipped)
        marks = {rollout.id: rollout.marks for rollout in chosen}
        for place, rollout in enumerate(self._result.rollouts):
            if rollout.id in marks:
                self._result.rollouts[place] = replace(rollout, marks=marks[rollout.id])
            elif rollout.id in skipped:
                marked = {**rollout.marks, "sinks": skipped[rollout.id]}
                self._result.rollouts[place] = replace(rollout, marks=marked)
        return chosen, skipped
