"""`rollouts report RUN`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_plugins.cli.common import RUN, add_filters, filters_of, note, say
from rollout_plugins.report import write_report
from rollout_plugins.store.read import open_run
from rollout_plugins.web.data import Progress
from rollout_plugins.web.page import LIMIT


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="the file (default: report.html)"
    )
    parser.add_argument("--force", action="store_true", help="replace the file even if it is not a report")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="also show what this plugin shows: a name or module:attribute",
    )
    add_filters(parser)
    parser.set_defaults(limit=LIMIT)
    parser.epilog = (
        f"The charts are of all rollouts of the run. The page lists at most {LIMIT:,} unless --limit says otherwise: "
        "of more, whole groups spread over the steps, or the first in the order of --order."
    )


def run(options: Namespace) -> None:
    stored = open_run(options.run)
    filters = filters_of(options)
    filters["limit"] = options.limit
    with _progress() as progress:
        made = write_report(
            stored, options.output, plugins=options.plugin, force=options.force, progress=progress, **filters
        )
    of = f" of {made.matched:,}" if made.matched > made.rollouts else ""
    say(f"{made.rollouts:,}{of} rollouts in {made.path}, {_size(made.bytes)}")
    if made.matched > made.rollouts:
        chosen = "the first of them" if options.order else "whole groups, spread over the steps"
        note(f"{chosen}; the charts show all. --limit for more, or filters for others")


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{max(count // 1024, 1)} kB"


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar; nothing unless standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=screen,
        transient=True, disable=not screen.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("steps", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of or None)

        yield show
