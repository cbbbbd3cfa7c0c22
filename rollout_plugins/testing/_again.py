"""Check that plugins reset their state with each run, as a script that trains twice in one process needs."""

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

# Sorted so that the first difference is the most telling one.
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
    """Pass the same rollouts to the same plugins in a run, in a later attempt of that run, and in another run.

    Plugins that reset their state do the same each time; the first difference raises an `AssertionError`. Return the
    result of the first run.

    Args:
        plugins: instances or names, as for `RolloutPluginCallback`.
        rollouts: the rollouts of each run, see `make_rollout`.
        run: the first run, see `make_run`.
        config: options for plugins given by name.
        ignore: names of metrics that differ between runs, such as timings.
        seconds: how long a sink may take.
    """
    rollouts = list(rollouts)
    with TemporaryDirectory() as folder:
        first = run or make_run()
        runs = [first, replace(first, attempt=first.attempt + 1), replace(first, id=f"{first.id}-again")]
        loaded = Plugins(collecting(plugins), config=config, autoload=False)
        results = [run_loaded(loaded, _in_own_folder(each, folder), rollouts, seconds) for each in runs]
    expected = _outcomes(results[0], runs[0], ignore)
    for later, result in zip(runs[1:], results[1:], strict=True):
        outcomes = _outcomes(result, later, ignore)
        for name in _OUTCOMES:
            if outcomes[name] != expected[name]:
                raise AssertionError(
                    f"in attempt {later.attempt} of run {later.id!r}, the same rollouts had other {name} than in the "
                    "first run: a plugin keeps state of that run; reset it in on_run_start. "
                    f"Expected {expected[name]:.300}, got {outcomes[name]:.300}"
                )
    return results[0]


def _in_own_folder(run: Run, folder: str) -> Run:
    """Return the run with a folder of its own, so that the plugins' files in it are not shared."""
    return replace(run, dir=str(Path(folder, f"{run.id}-{run.attempt}")))


def _outcomes(result: Result, run: Run, ignore: Collection[str]) -> dict[str, str]:
    """Return the results that can be compared between runs, as text without the run's name."""
    metrics = {name: value for name, value in result.metrics.items() if name.partition("/")[2] not in ignore}
    outcomes = {name: getattr(result, name) for name in _OUTCOMES} | {"metrics": metrics}
    outcomes |= {name: [_anonymous(r) for r in outcomes[name]] for name in ("rollouts", "selected")}
    outcomes |= {"traces": [trace.rollout_id for trace in result.traces]}
    return {name: repr(value).replace(f"{run.id}.{run.attempt}.", "") for name, value in outcomes.items()}


def _anonymous(rollout: Rollout) -> dict[str, Any]:
    return {field.name: getattr(rollout, field.name) for field in fields(rollout)} | {"run_id": "", "attempt": 0}
