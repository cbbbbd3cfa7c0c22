"""Set up, start and end runs, for the callback and the recorder."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollout_hookspecs import Run

from rollout_plugins.engine.announce import announce_end, announce_start
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.engine.plugin_checks import is_required
from rollout_plugins.engine.run_id import place_in_launch
from rollout_plugins.errors import SetupError
from rollout_plugins.store.run_facts import earlier_attempts, run_files
from rollout_plugins.store.stored_counts import count_rollouts
from rollout_plugins.system.remote_runs import is_url, local_path

logger = logging.getLogger("rollout_plugins")

#: Runs of this process, and earlier runs that it has warned about.
_reported_runs: set[Path] = set()
#: Targets of unredacted rollouts for which a warning was logged.
_warned_targets: set[str | None] = set()


def end_with(owner: object, end: Callable[[], object]) -> None:
    """Call `end` when the owner is collected or the process ends."""
    finalizer = weakref.finalize(owner, end)  # `__del__` may not run at exit
    _end_with_child(finalizer)
    multiprocessing.util.register_after_fork(owner, lambda _: _end_with_child(finalizer))


def _end_with_child(finalizer: Callable[[], object]) -> None:
    """Register with `multiprocessing`, whose forked children run its finalizers at their end, but not `atexit`."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, finalizer, exitpriority=0)


def start_run(
    pipeline: Pipeline,
    plugins: Plugins,
    run: Run,
    generation: int,
    *,
    trainer: Any,
    safely: Callable[[str, Callable[[], object]], object],
) -> None:
    """Start a run, announce it, and warn of earlier runs in its folder that did not end."""
    for _, plugin in plugins.manager.list_name_plugin():
        # On the training thread, so that the sink sees what is open there, such as the trainer's own tracker.
        safely("bind a sink to the trainer", partial(as_sink(plugin).bind, trainer))
    pipeline.start(run, generation)
    announce_start(run)
    if run.rank == 0:
        pipeline.later(partial(warn_of_unfinished, Path(run.dir)))


def end_run(pipeline: Pipeline) -> None:
    """End the run, and announce where it is."""
    run = pipeline.close()
    if run is not None:
        announce_end(run, pipeline.counters, pipeline.findings_of(run))


def load_plugins(
    plugins: Sequence[Any] | None, config: Any, *, disable: Iterable[str], mirror: str | None, autoload: bool
) -> Plugins:
    """Load the given and the installed plugins, and `mirror` if a URL is given for it."""
    if mirror is not None:
        config = dict(config or {})
        config["mirror"] = {**config.get("mirror", {}), "to": mirror}
        plugins = [*(plugins or ()), "mirror"]
    loaded = Plugins(plugins, disable=disable, config=config, autoload=autoload)
    _check_redact(loaded)
    return loaded


def _check_redact(plugins: Plugins) -> None:
    """Check plugins that copy a run's files: raise if one needs `redact` and it is missing, or warn."""
    loaded = plugins.manager.list_name_plugin()
    if any(is_required(plugin) for _, plugin in loaded):
        return
    for name, plugin in loaded:
        require_redact, target = as_sink(plugin).require_redact, as_sink(plugin).target
        if require_redact:
            raise SetupError(
                f"{name} has require_redact=True, and nothing searches rollouts for secrets: add 'redact' to plugins"
            )
        if require_redact is not None and target not in _warned_targets and place_in_launch()[0] == 0:
            _warned_targets.add(target)
            logger.warning(
                'rollouts are copied to %s unredacted; plugins=["redact"] would remove secrets from them first', target
            )


def checked_dir(path: str | os.PathLike[str] | None) -> Path | None:
    """Return the option `dir` as an absolute folder; raise if it cannot be one."""
    if path is None:
        return None
    if not os.fspath(path):
        raise SetupError("dir is empty; give a folder, or leave it out")
    if is_url(path):
        raise SetupError(
            f"dir={os.fspath(path)!r} is a URL; runs are written to a folder of this machine and copied from there: "
            f"write mirror={os.fspath(path)!r}, and leave dir out or give a folder"
        )
    folder = local_path(path).absolute()  # a reward may change the working directory
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"dir={str(folder)!r} is a file; give a folder, or leave it out")
    return folder


def warn_of_unfinished(run_dir: Path) -> None:
    """Warn of earlier runs in the same folder that did not end, such as killed ones: they are readable."""
    _reported_runs.add(run_dir)
    run_dirs = {file.parent for file in run_dir.parent.glob("[!.]*/run*.json")}
    for folder in sorted(run_dirs - _reported_runs):
        _reported_runs.add(folder)
        attempts = [attempt for file in run_files(folder) for attempt in earlier_attempts(file)]
        if attempts and not any(attempt.get("ended") for attempt in attempts):
            count = count_rollouts(folder)
            logger.warning("%s did not end properly or is still running; its %d rollouts are readable", folder, count)
