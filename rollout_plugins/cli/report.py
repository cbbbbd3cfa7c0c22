"""Implement `rollouts report RUN`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollout_plugins.cli.chosen import add_allow_damaged, add_filters, add_run, filters_of, note_damage, opened
from rollout_plugins.cli.common import check_out, counted, note, say
from rollout_plugins.report import write_report
from rollout_plugins.system.labels import count
from rollout_plugins.web.page import LIMIT


def configure(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the file (default: report.html)")
    parser.add_argument("--force", action="store_true", help="replace the file if there is one")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="also show what this plugin shows: a name or module:attribute",
    )
    add_allow_damaged(parser)
    add_filters(parser)
    parser.set_defaults(limit=LIMIT)
    parser.epilog = (
        f"The charts cover all rollouts of the run. The page lists at most {LIMIT:,} of them unless you set --limit: "
        "whole groups, spread over the steps, or with --order the first in that order."
    )


def run(options: Namespace) -> int:
    check_out(options.out, force=options.force)
    stored = opened(options.run)
    filters = filters_of(options, stored)
    filters["limit"] = options.limit or sys.maxsize
    with counted("steps") as progress:
        made = write_report(
            stored, options.out, plugins=options.plugin, force=options.force, progress=progress, **filters
        )
    of = f"{made.rollouts:,} of " if made.matched > made.rollouts else ""
    say(f"{of}{count(made.matched, 'rollout')} in {made.path}, {_size(made.bytes)}")
    if made.matched > made.rollouts:
        chosen = "the first of them" if options.order else "whole groups, spread over the steps"
        note(f"{chosen}; the charts show all. --limit for more, or filters for others")
    return note_damage(stored, allowed=options.allow_damaged)


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{max(count // 1024, 1)} kB"
