"""`rollouts export RUN --to TARGET`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from rollout_plugins.cli.common import RUN, add_filters, busy, filters_of, say
from rollout_plugins.engine.discover import known_sinks, options_of
from rollout_plugins.engine.export import Sent
from rollout_plugins.engine.telling import shown
from rollout_plugins.errors import RolloutPluginsError, RunError, SetupError
from rollout_plugins.store.read import StoredRun, open_run
from rollout_plugins.store.write import write_parquet

FLAGS = {"path": "--out", "project": "--project", "name": "--name"}
"""By option of a sink, how it is given here."""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    sinks = ", ".join(known_sinks())
    parser.add_argument(
        "--to",
        choices=("parquet", *known_sinks()),
        default="parquet",
        metavar="TARGET",
        help=f"parquet (the default), or an installed sink: {sinks}",
    )
    parser.add_argument("-o", "--out", type=Path, help="parquet: the file; jsonl, scout: the folder, jsonl also - ")
    parser.add_argument(
        "--plugins", metavar="NAMES", help="sinks: plugins that format or search what is sent, such as redact"
    )
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
    takes = options_of(options.to)
    for name, value in given.items():
        if value is not None and name not in takes:
            flags = ", ".join(flag for option, flag in FLAGS.items() if option in takes) or "none of these"
            raise SetupError(f"{FLAGS[name]} is not for {options.to}; it takes {flags}")
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    plugins = options.plugins.split(",") if options.plugins else []
    with busy(f"sending to {options.to}"):
        done = _sent(stored, options, plugins, chosen)
    if not done.target.endswith(":-"):
        say(f"{done.sent:,} rollouts sent to {done.target}; it had {done.had:,}, the cap left out {done.capped:,}")


def _sent(stored: StoredRun, options: Namespace, plugins: list[str], chosen: dict[str, Any]) -> Sent:
    try:
        return stored.export(options.to, cap=options.cap, plugins=plugins, options=chosen, **filters_of(options))
    except (RolloutPluginsError, OSError):
        raise
    except Exception as error:
        raise RunError(f"{options.to} raised {shown(error)}") from error
