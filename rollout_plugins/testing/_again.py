"""Whether plugins start afresh with each run, as a script that trains twice in one process needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollout_hookspecs import Rollout, Run

from rollout_plugins.engine.discover import Plugins
from rollout_plugins.testing._records import make_run
from rollout_plugins.testing._run import Result, collecting, run_loaded

#: What most shows what a plugin did first.
_OUTCOMES = ("dropped", "skipped", "selected", "metrics", "drops", "unsent", "traces", "rollouts", "findings")


def run_again(
    plugins: Sequence[Any] | None,
    rollouts: Iterable[Rollout],
    *,
    run: Run | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    ignore: Collection[str] = (),
    seconds: float = 60.0,
) -> Result:
    """Give the same rollouts to the same plugin objects in a run, a later attempt of it, and another run.

    Plugins that begin anew with each of them do the same each time; the first difference is an `AssertionError`.
    Returns what became of the rollouts.

    Args:
        plugins: instances or names, as for `RolloutPluginCallback`.
        rollouts: what the trainer made, each time, see `make_rollout`.
        run: the first run, see `make_run`.
        config: options for plugins given by name.
        ignore: names of metrics that differ from run to run, such as timings.
        seconds: how long a sink may take.
    """
    given = list(rollouts)
    with TemporaryDirectory() as folder:
        first = run or make_run()
        runs = [first, replace(first, attempt=first.attempt + 1), replace(first, id=f"{first.id}-again")]
        loaded = Plugins(collecting(plugins), config=config, autoload=False)
        results = [run_loaded(loaded, _kept(one, folder), given, seconds) for one in runs]
    expected = _outcomes(results[0], runs[0], ignore)
    for one, result in zip(runs[1:], results[1:], strict=True):
        found = _outcomes(result, one, ignore)
        for what in _OUTCOMES:
            if found[what] != expected[what]:
                raise AssertionError(
                    f"in attempt {one.attempt} of run {one.id!r} the same rollouts had other {what} than in the run "
                    "before: a plugin remembers that run; forget it in on_run_start. "
                    f"Expected {expected[what]:.300}, found {found[what]:.300}"
                )
    return results[0]


def _kept(run: Run, folder: str) -> Run:
    """In a folder of its own, so that what plugins keep there is not shared."""
    return replace(run, dir=str(Path(folder, f"{run.id}-{run.attempt}")))


def _outcomes(result: Result, run: Run, ignore: Collection[str]) -> dict[str, str]:
    """What may be compared between runs, in words: without names of the run."""
    metrics = {name: value for name, value in result.metrics.items() if name.partition("/")[2] not in ignore}
    found = {what: getattr(result, what) for what in _OUTCOMES} | {"metrics": metrics}
    found |= {what: [_anonymous(r) for r in found[what]] for what in ("rollouts", "selected")}
    found |= {"traces": [trace.rollout_id for trace in result.traces]}
    return {what: repr(value).replace(f"{run.id}.{run.attempt}.", "") for what, value in found.items()}


def _anonymous(rollout: Rollout) -> dict[str, Any]:
    return {one.name: getattr(rollout, one.name) for one in fields(rollout)} | {"run_id": "", "attempt": 0}
