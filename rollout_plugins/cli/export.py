"""`rollouts export RUN --to TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollout_plugins.cli.filters import RUN, add_filters, filters_of
from rollout_plugins.cli.output import busy, say
from rollout_plugins.store.export import to_parquet
from rollout_plugins.store.read import open_run

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

TARGETS = ("parquet",)


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--to", choices=TARGETS, default="parquet", help="what to make of them (default: parquet)")
    parser.add_argument("-o", "--out", type=Path, help="the file (default: <run id>.parquet, here)")
    parser.add_argument("--columns", help="only these, with commas between them")
    add_filters(parser)


def run(options: Namespace) -> None:
    stored = open_run(options.run)
    out = options.out or Path(f"{stored.dir.name}.parquet")
    columns = options.columns.split(",") if options.columns else None
    with busy(f"writing {out}"):
        written = to_parquet(stored, out, columns=columns, **filters_of(options))
    say(f"{written:,} rollouts in {out}")
