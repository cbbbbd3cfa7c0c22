"""`rollouts export RUN --to TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_plugins.cli.filters import RUN, add_filters, filters_of
from rollout_plugins.cli.output import busy, say
from rollout_plugins.errors import SetupError
from rollout_plugins.store.read import open_run
from rollout_plugins.store.write import write_parquet

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rollout_plugins.store.read import StoredRun

SINKS = ("trackio", "wandb", "jsonl", "scout")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--to", choices=("parquet", *SINKS), default="parquet", help="where to (default: parquet)")
    parser.add_argument("-o", "--out", type=Path, help="parquet: the file; jsonl, scout: the folder, jsonl also - ")
    parser.add_argument("--columns", help="parquet: only these, with commas between them")
    parser.add_argument("--cap", type=int, metavar="N", help="sinks: at most N of each generation, whole groups first")
    parser.add_argument("--project", help="trackio, wandb: the project")
    parser.add_argument("--name", help="trackio, wandb: the run; one that exists is continued")
    add_filters(parser)


def run(options: Namespace) -> None:
    stored = open_run(options.run)
    if options.to == "parquet":
        _parquet(stored, options)
    else:
        _sink(stored, options)


def _parquet(stored: StoredRun, options: Namespace) -> None:
    out = options.out or Path(f"{stored.dir.name}.parquet")
    columns = options.columns.split(",") if options.columns else None
    with busy(f"writing {out}"):
        written = write_parquet(out, stored.tables(columns, **filters_of(options)))
    say(f"{written:,} rollouts in {out}")


def _sink(stored: StoredRun, options: Namespace) -> None:
    """Send to a sink what it does not have yet. Nothing but lines goes to standard output when that is the target."""
    given = {"path": str(options.out) if options.out else None, "project": options.project, "name": options.name}
    accepted = ("path",) if options.to in {"jsonl", "scout"} else ("project", "name")
    wrong = [name for name, value in given.items() if value is not None and name not in accepted]
    if wrong:
        names = {"path": "--out", "project": "--project", "name": "--name"}
        raise SetupError(
            f"{names[wrong[0]]} is not for {options.to}; it takes {', '.join(names[a] for a in accepted)}"
        )
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with busy(f"sending to {options.to}"):
        done = stored.export(options.to, cap=options.cap, options=chosen, **filters_of(options))
    if not done.target.endswith(":-"):
        say(f"{done.sent:,} rollouts sent to {done.target}; it had {done.had:,}, the cap left out {done.capped:,}")
