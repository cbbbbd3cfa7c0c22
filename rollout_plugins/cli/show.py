"""`rollouts show RUN`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rollout_hookspecs import Rollout

from rollout_plugins.cli.common import RUN, add_filters, add_json, busy, console, filters_of, note, show
from rollout_plugins.content.plain import write_json
from rollout_plugins.errors import RunError
from rollout_plugins.show import render_group, render_history, render_rollouts
from rollout_plugins.store.codec import as_json
from rollout_plugins.store.read import StoredRun, open_run

LIMIT, HISTORY = 10, 1000
LINES = 40


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--best", type=int, metavar="N", help="the N with the highest reward (default: the last step's best)"
    )
    parser.add_argument(
        "--worst", type=int, metavar="N", help="the N with the lowest reward (default: the last step's worst)"
    )
    parser.add_argument("--id", action="append", help="this rollout; may be given again")
    parser.add_argument("--group", metavar="N|ID", help="a group side by side: its number, or any rollout of it")
    parser.add_argument(
        "--history", metavar="ID|TEXT", help="the prompt of this rollout, or of this text, through the run"
    )
    parser.add_argument("--lines", type=int, default=LINES, help=f"lines of each on a terminal (default: {LINES})")
    parser.add_argument("--full", action="store_true", help="leave nothing out")
    add_filters(parser, group=False)
    add_json(parser)


def run(options: Namespace) -> None:
    stored = open_run(options.run)
    with busy("looking for rollouts"):
        found = list(_chosen(stored, options))
    for name, reason in stored.damaged.items():
        note(f"{name} cannot be read and is left out: {reason}")
    if options.json:
        for _, rollout in found:
            write_json(sys.stdout, as_json(rollout))
    elif not found:
        note("no rollouts match" if len(stored) else f"{stored.dir} has no rollouts yet")
    else:
        _print(found, options)


def _chosen(stored: StoredRun, options: Namespace) -> Iterator[tuple[str, Rollout]]:
    """Titles and rollouts, for whatever combination of options was given."""
    filters = filters_of(options)
    group = filters.pop("group", None)
    if options.id:
        yield from (("", stored.get(one)) for one in options.id)
        return
    if group is not None and not group.isdigit():
        yield from (("", rollout) for rollout in stored.group(group))
        return
    if group is not None:
        filters["group"] = int(group)
        filters.setdefault("step", "last")
    if options.history is not None:
        yield from _history(stored, options.history, filters)
        return
    if options.best is None and options.worst is None and not filters:
        filters = {"step": "last"}
        options.best = options.worst = 1
    if options.best is None and options.worst is None:
        filters.setdefault("limit", LIMIT)
        yield from (("", rollout) for rollout in stored.rollouts(**filters))
        return
    yield from _extremes(stored, filters, options.best or 0, options.worst or 0)


def _extremes(stored: StoredRun, filters: dict[str, Any], best: int, worst: int) -> Iterator[tuple[str, Rollout]]:
    seen = set()
    for title, count, order in (("best", best, "-reward"), ("worst", worst, "reward")):
        for rollout in stored.rollouts(**{**filters, "order": order, "limit": count}) if count else ():
            if rollout.id not in seen:
                seen.add(rollout.id)
                yield title, rollout


def _history(stored: StoredRun, prompt: str, filters: dict[str, Any]) -> Iterator[tuple[str, Rollout]]:
    try:
        asked: Any = stored.get(prompt)
    except RunError:
        asked = prompt
    limit = filters.pop("limit", HISTORY)
    for number, rollout in enumerate(stored.history(asked, **filters)):
        if number == limit:
            return
        yield f"step {rollout.step}", rollout


def _print(found: list[tuple[str, Rollout]], options: Namespace) -> None:
    screen = console()
    whole = options.full or not screen.is_terminal
    if options.group is not None:
        shown = render_group([rollout for _, rollout in found], width=screen.width, max_lines=None)
    elif options.history is not None:
        shown = render_history([rollout for _, rollout in found], width=screen.width)
    else:
        lines = None if whole else max(options.lines, 1)
        blocks = [render_rollouts([one], width=screen.width, max_lines=lines) for one in found]
        shown = Group(*(part for block in blocks for part in (*block.renderables, "")))
    show(shown, len(shown.renderables))
