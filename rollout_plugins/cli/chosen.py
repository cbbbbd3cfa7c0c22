"""Select the run and the rollouts that a command works on, and report what cannot be read."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollout_plugins.cli.common import busy, natural, note
from rollout_plugins.errors import RunError
from rollout_plugins.reading.filters import PRUNED
from rollout_plugins.reading.find_runs import find_all_runs, find_newest_run
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.system.labels import count

RUN = "a run's folder, a folder of runs, or the trainer's output_dir (the newest run in it)"
DAMAGED = 3
"""The exit code of a command whose result is incomplete because of damage."""
MOST_VALUES = 12
_NAMES = ("split", "step", "group", "rank", "finish", "tool", "where", "search", "order", "limit")


def add_one_run(parser: ArgumentParser) -> None:
    """Add `RUN` to a command that takes more arguments."""
    parser.add_argument("run", metavar="RUN", help=RUN)


def add_run(parser: ArgumentParser) -> None:
    """Add an optional `RUN`, for `opened` to open."""
    several = "several: the folders of its nodes, where each has a disk of its own"
    parser.add_argument(
        "run", metavar="RUN", nargs="*", help=f"{RUN}; {several}; default: the newest run in or below this folder"
    )


def opened(path: str | Sequence[str] | None) -> StoredRun:
    """Open the run, and name it on standard error unless its own folder was given."""
    paths = [path] if isinstance(path, str) else path or ["."]
    with busy("looking for runs"):
        run_folders = find_all_runs(paths[0]) if len(paths) == 1 else [find_newest_run(paths)]
    run = StoredRun(run_folders[-1])
    if not path or len(run_folders) > 1:
        of = f", the newest of {len(run_folders):,} runs" if len(run_folders) > 1 else ""
        note(f"{run.name}{of}: {run.place}")
    for line in (*run.health.contradictions, *run.health.absent):
        note(f"{run.place}: {line}")
    return run


def add_allow_damaged(parser: ArgumentParser) -> None:
    """Add `--allow-damaged` to a command that otherwise fails if its result is incomplete."""
    parser.add_argument(
        "--allow-damaged", action="store_true", help=f"exit with 0, not {DAMAGED}, when some files cannot be read"
    )


def note_damage(*runs: StoredRun, allowed: bool = True) -> int:
    """Report what of these runs cannot be read and is missing from the result; return the exit code."""
    lines = [(run, line) for run in runs for line in run.health.unreadable]
    for run, line in lines:
        note(f"{run.place}: {line}")
    return DAMAGED if lines and not allowed else 0


def note_pruned(run: StoredRun, what: str, **filters: Any) -> None:
    """Report how many rollouts have lost their text, if the result depends on texts."""
    if pruned := run.count(where=PRUNED, **filters):
        note(f"{run.place}: {count(pruned, 'rollout')} without text, since it was pruned, {what}")


def add_filters(parser: ArgumentParser, *, group: bool = True) -> None:
    """Add `--split`, `--step` and the other filters to a command."""
    chosen = parser.add_argument_group("which rollouts")
    chosen.add_argument("--split", help="train or eval")
    chosen.add_argument("--step", help="a number, last, -2 (the last but one), or a range such as 10-20")
    if group:
        chosen.add_argument("--group", type=int, help="the group's number in its generation")
    chosen.add_argument("--rank", type=int, help="made by the process of this rank")
    chosen.add_argument("--finish", help="stop, length, tool_limit, error or unknown")
    chosen.add_argument("--tool", help="that called this tool")
    chosen.add_argument(
        "--errors",
        dest="has_error",
        action="store_true",
        default=None,
        help="that failed, or that have a failed tool call",
    )
    chosen.add_argument("--where", help="a SQL condition over the columns, such as 'reward < 0 and calls > 1'")
    chosen.add_argument("--search", metavar="TEXT", help="with this text, in any case, in whatever is stored of it")
    chosen.add_argument("--order", help="columns to sort by, '-' for descending: reward or -judge.score,step")
    chosen.add_argument("--limit", type=natural, help="at most this many; 0 for all")
    chosen.add_argument(
        "--superseded", action="store_true", help="also rollouts of steps that a resumed attempt repeated"
    )


def filters_of(options: Namespace, *runs: StoredRun) -> dict[str, Any]:
    """Return the filters given on the command line, after checking that they can match something in the runs."""
    names = (*_NAMES, "has_error", "superseded")
    given = {name: value for name in names if (value := getattr(options, name, None)) not in (None, False)}
    if given.get("limit") == 0:
        del given["limit"]
    for run in runs:
        check_filters(run, given)
    return given


def check_filters(run: StoredRun, filters: Mapping[str, Any]) -> None:
    """Raise an error if no rollout of the run has such a value, because it is probably a typing error."""
    if all(value is None for value in filters.values()) or not len(run):  # counting opens the run
        return
    for name in ("split", "group", "rank", "finish"):
        is_a_value = name != "group" or str(filters.get(name, 0)).isdigit()  # or the id of one of its rollouts
        _check_value(name, filters.get(name) if is_a_value else None, partial(run.values, name))
    _check_value("tool", filters.get("tool"), lambda: _tools(run))
    step, split = filters.get("step"), filters.get("split")
    if step is not None and not run.count(step=step, split=split, superseded=True):
        of = f" with split {split!r}" if split else ""
        raise RunError(f"no rollout{of} has step {step}; the run has {_listed(_steps(run, split))}")


def _check_value(name: str, value: Any, read_values: Callable[[], Sequence[Any]]) -> None:
    if value is not None and str(value) not in map(str, there := read_values()):
        raise RunError(f"no rollout has {name} {str(value)!r}; the run has {_listed(there)}")


def _tools(run: StoredRun) -> list[str]:
    found = run.sql("select distinct name from tool_calls where name is not null order by 1", superseded=True)
    return list(found["name"].to_pylist())


def _steps(run: StoredRun, split: str | None) -> list[int]:
    return sorted(set(run.table(["step"], split=split, superseded=True)["step"].drop_null().to_pylist()))


def _listed(values: Sequence[Any]) -> str:
    """Return values as text: all of a few, the first and last of many numbers, or some of many names."""
    if len(values) <= MOST_VALUES:
        return ", ".join(map(str, values)) or "none"
    if isinstance(values[0], int):
        return f"{values[0]} to {values[-1]}"
    return f"{', '.join(map(str, values[:MOST_VALUES]))} and {len(values) - MOST_VALUES:,} more"
