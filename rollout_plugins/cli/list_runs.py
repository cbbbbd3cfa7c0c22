"""Implement `rollouts list DIR`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from rollout_plugins.cli.chosen import note_damage
from rollout_plugins.cli.common import add_json, busy, note, print_json, print_table
from rollout_plugins.errors import RunError
from rollout_plugins.reading.find_runs import find_all_runs
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.reading.state import files_of, state_of
from rollout_plugins.show.chart import sparkline, training
from rollout_plugins.show.text import evenly, local_time

SPARKS = 12
SPARE = ("run", "trainer", "over time", "started", "drops")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "dir",
        metavar="FOLDER",
        nargs="?",
        default=".",
        help="a folder with runs in or below it (default: this one)",
    )
    add_json(parser)


def run(options: Namespace) -> None:
    with busy("reading the runs"):
        opened = [run for folder in find_all_runs(options.dir) if (run := _opened(folder)) is not None]
        found = [_facts(run) for run in opened]
    if options.json:
        print_json(found)
        note_damage(*opened)
        return
    left_out = {"damaged", "attempts"} | ({"drops"} if not any(facts["drops"] for facts in found) else set())
    shown = [{name: value for name, value in facts.items() if name not in left_out} for facts in found]
    print_table([{**facts, "folder": _from_here(facts["folder"])} for facts in shown], spare=SPARE)
    note_damage(*opened)


def _from_here(place: str) -> str:
    """Return a folder as a person would type it from here, or the full path for a program."""
    near = sys.stdout.isatty() and Path(place).is_relative_to(Path.cwd())
    return str(Path(place).relative_to(Path.cwd())) if near else place


def _opened(folder: Path) -> StoredRun | None:
    """Open a run; if that fails, report it and return None."""
    try:
        return StoredRun(folder)
    except RunError as error:
        note(str(error))
        return None


def _facts(stored: StoredRun) -> dict[str, Any]:
    rows = stored.stats()
    train = training(rows)
    attempts = stored.attempts
    started = min((a["started"] for a in attempts if a["started"] is not None), default=None)
    return {
        "name": stored.name,
        "run": stored.info.id,
        "started": local_time(started)[:16] or None,
        "trainer": stored.info.trainer,
        "rollouts": sum(row["rollouts"] for row in rows),
        "steps": len(train),
        "reward": train[-1]["reward"] if train else None,
        "over time": sparkline(evenly([row["reward"] for row in train], SPARKS)),
        "state": state_of(attempts, max((changed for _, changed, _ in files_of(stored.dir)), default=0.0)),
        "drops": sum(stored.health.drops.values()),
        "folder": stored.place,
        "attempts": max((a.get("attempt", 1) for a in attempts), default=1),
        "damaged": dict(stored.health.damaged),
    }
