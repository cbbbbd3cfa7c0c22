"""What the callback and the recorder have in common when a run is set up."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollout_plugins.content.elsewhere import here, is_url
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.engine.run_id import place_in_launch
from rollout_plugins.engine.telling import is_required
from rollout_plugins.engine.where import say_end
from rollout_plugins.errors import SetupError
from rollout_plugins.store.run_facts import earlier_attempts, run_files
from rollout_plugins.store.so_far import count_rollouts

logger = logging.getLogger("rollout_plugins")

#: Runs of this process, and those that it has warned about.
_known: set[Path] = set()
#: Places that rollouts go to without a search for secrets, and that were warned about.
_warned: set[str | None] = set()

_DASHBOARDS = ("trackio", "wandb")


def open_pipeline(
    owner: Any, plugins: Plugins, *, strict: bool, sync: bool, on_full: str, end_seconds: float | None
) -> Pipeline:
    """A pipeline whose run ends when its owner is gone, or the process ends."""
    pipeline = Pipeline(plugins, strict=strict, sync=sync, on_full=on_full, end_seconds=end_seconds)
    end = weakref.finalize(owner, end_run, pipeline)  # runs at exit, too, which `__del__` may not
    _end_with_child(end)
    multiprocessing.util.register_after_fork(pipeline, lambda _: _end_with_child(end))
    return pipeline


def _end_with_child(end: Callable[[], object]) -> None:
    """A child that `multiprocessing` forks ends without `atexit`, but not without its own finalizers."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, end, exitpriority=0)


def end_run(pipeline: Pipeline) -> None:
    """Close the run, and say where it is."""
    run = pipeline.close()
    if run is not None:
        say_end(run, pipeline.counters)


def cap_dashboards(plugins: Plugins) -> None:
    """Where rollouts go to a dashboard they are capped, unless somebody said how or not to."""
    if any(plugins.manager.has_plugin(name) for name in _DASHBOARDS):
        plugins.add("cap")


def load_plugins(
    plugins: Sequence[Any] | None, config: Any, *, disable: Iterable[str], mirror: str | None, autoload: bool
) -> Plugins:
    """The plugins that were asked for, with the one that copies the run to a URL, and those that are installed."""
    if mirror is not None:
        config = dict(config or {})
        config["mirror"] = {**config.get("mirror", {}), "to": mirror}
        plugins = [*(plugins or ()), "mirror"]
    loaded = Plugins(plugins, disable=disable, config=config, autoload=autoload)
    _check_redact(loaded)
    return loaded


def _check_redact(plugins: Plugins) -> None:
    """Plugins that take a run's files away: refuse those that need `redact` and lack it, and warn of the others."""
    loaded = plugins.manager.list_name_plugin()
    if any(is_required(plugin) for _, plugin in loaded):
        return
    for name, plugin in loaded:
        needs, target = as_sink(plugin).require_redact, as_sink(plugin).target
        if needs:
            raise SetupError(
                f"{name} has require_redact=True, and nothing searches rollouts for secrets: add 'redact' to plugins"
            )
        if needs is not None and target not in _warned and place_in_launch()[0] == 0:
            _warned.add(target)
            logger.warning(
                'rollouts go to %s as they are; plugins=["redact"] would take secrets out of them first', target
            )


def bind_sinks(plugins: Plugins, trainer: Any, safely: Callable[[str, Callable[[], object]], object]) -> None:
    """Call each sink on the training thread, where it can see a run that is open, with the trainer if any."""
    for _, plugin in plugins.manager.list_name_plugin():
        safely("bind a sink to the trainer", partial(as_sink(plugin).bind, trainer))


def named_metrics(pipeline: Pipeline, split: str, prefix: str = "eval", dataset: str = "") -> dict[str, float]:
    """What plugins measured since the last call, and what was lost so far, as the trainer's log shows it."""
    numbers = pipeline.pop_metrics(split, dataset)
    if split == "train" and pipeline.has_metrics and pipeline.run is not None:
        numbers |= pipeline.said_metrics()
    prefix = f"{prefix}_rollouts" if split == "eval" else "rollouts"
    return {f"{prefix}/{name}": value for name, value in numbers.items()}


def checked_dir(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    if not os.fspath(path):
        raise SetupError("dir is empty; give a folder, or leave it out")
    if is_url(path):
        raise SetupError(
            f"dir={os.fspath(path)!r} is a URL; runs are written to a folder of this machine and copied from there: "
            f"write mirror={os.fspath(path)!r}, and leave dir out or give a folder"
        )
    folder = here(path).absolute()  # a reward may change the working directory
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"dir={str(folder)!r} is a file; give a folder, or leave it out")
    return folder


def tell_of_unfinished(root: Path, current: str) -> None:
    """Say what earlier runs in the folder left behind when they were killed: it is all readable."""
    _known.add(root / current)
    found = {file.parent for file in root.glob("[!.]*/run*.json")}
    for folder in sorted(found - _known):
        _known.add(folder)
        attempts = [attempt for file in run_files(folder) for attempt in earlier_attempts(file)]
        if attempts and not any(attempt.get("ended") for attempt in attempts):
            count = count_rollouts(folder)
            logger.warning("%s did not end properly, or still runs; its %d rollouts are readable", folder, count)
