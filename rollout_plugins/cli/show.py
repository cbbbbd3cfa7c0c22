"""Implement `rollouts show RUN`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import groupby, islice
from typing import Any

from rich.console import Group
from rollout_hookspecs import Rollout

from rollout_plugins.cli.chosen import add_filters, add_run, filters_of, note_damage, note_pruned, opened
from rollout_plugins.cli.common import add_json, busy, console, natural, note, show
from rollout_plugins.content.exact_json import rollout_json
from rollout_plugins.content.json_safe import write_json
from rollout_plugins.errors import RunError
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show import render_group, render_history, render_rollouts

LIMIT, HISTORY = 10, 1000
LINES = 40
Found = tuple[list[tuple[str, Rollout]], str]
"""Titles and rollouts to show, and a note if there are more."""


def configure(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--best", type=natural, metavar="N", help="the N with the highest reward (default: the last step's best)"
    )
    parser.add_argument(
        "--worst", type=natural, metavar="N", help="the N with the lowest reward (default: the last step's worst)"
    )
    parser.add_argument("--id", action="append", help="this rollout; may be given again")
    parser.add_argument("--group", metavar="N|ID", help="a group side by side: its number, or any rollout of it")
    parser.add_argument(
        "--history",
        metavar="ID|TEXT",
        help="one prompt through the run: this rollout's, or the one with exactly this text",
    )
    parser.add_argument(
        "--lines", type=natural, default=LINES, help=f"lines of each rollout on a terminal (default: {LINES})"
    )
    parser.add_argument("--full", action="store_true", help="leave nothing out")
    add_filters(parser, group=False)
    add_json(parser)


def run(options: Namespace) -> None:
    stored = opened(options.run)
    filters = filters_of(options, stored)
    with busy("looking for rollouts"):
        titled_rollouts, remark = _chosen(stored, options, filters)
    if options.json:
        for _, rollout in titled_rollouts:
            write_json(sys.stdout, rollout_json(rollout))
    elif not titled_rollouts:
        note(_why_none(options) if len(stored) else _none_of(stored))
    else:
        _print(titled_rollouts, options)
    if remark:
        note(remark)
    if options.search:
        note_pruned(stored, "cannot be searched")
    note_damage(stored)


def _none_of(stored: StoredRun) -> str:
    lost = ", ".join(f"{times:,} {why}" for why, times in stored.health.drops.items())
    return f"{stored.place} has no rollouts" + (f"; lost: {lost}" if lost else "")


def _why_none(options: Namespace) -> str:
    why = "; --history takes the whole text of a message, and --search a part of it" if options.history else ""
    return f"no rollouts match{why}"


def _chosen(stored: StoredRun, options: Namespace, filters: dict[str, Any]) -> Found:
    """Return the rollouts that any combination of options selects."""
    group = filters.pop("group", None)
    _check_alone(options, filters)
    limit = LIMIT if options.limit is None and group is None else options.limit or None
    if options.id:
        return [("", stored.get(one)) for one in options.id], ""
    if group is not None and not group.isdigit():
        return [("", rollout) for rollout in stored.siblings(group)], ""
    if group is not None:
        filters = {"step": "last", **filters, "group": int(group)}
    if options.history is not None:
        return _first(_history(stored, options.history, filters), HISTORY if options.limit is None else limit)
    if options.best is None and options.worst is None and not filters and limit is not None:
        extremes, total = list(_extremes(stored, {"step": "last"}, 1, 1)), stored.count(step="last")
        remark = f"best and worst of the {total:,} rollouts of the last step; --step last for more"
        return extremes, remark if len(extremes) < total else ""
    if options.best is None and options.worst is None:
        return _matching(stored, filters, limit)
    return list(_extremes(stored, filters, options.best or 0, options.worst or 0)), ""


def _check_alone(options: Namespace, filters: dict[str, Any]) -> None:
    """Refuse other selecting options if one already names the rollouts."""
    by_id = "--id" if options.id else "--group ID" if not (options.group or "0").isdigit() else ""
    given = {"best": options.best, "worst": options.worst, **(filters if by_id else {}), "superseded": None}
    others = [f"--{name.replace('has_error', 'errors')}" for name, value in given.items() if value is not None]
    if others and (by_id or options.history is not None):
        raise RunError(f"{by_id or '--history'} shows all that it names; leave out {' and '.join(others)}")


def _matching(stored: StoredRun, filters: dict[str, Any], limit: int | None) -> Found:
    """Return the first matches and a note with their number. A text search is not counted: that reads all text."""
    filters.pop("limit", None)
    if filters.get("search") and limit is not None:
        return _first((("", rollout) for rollout in stored.rollouts(**filters, limit=limit + 1)), limit)
    matching = stored.rollouts(**filters)
    shown = [("", rollout) for rollout in matching.page(0, len(matching) if limit is None else limit)]
    is_complete = limit is None or limit >= len(matching)
    return shown, "" if is_complete else f"{limit:,} of {len(matching):,}; --limit 0 for all"


def _first(titled_rollouts: Iterator[tuple[str, Rollout]], limit: int | None) -> Found:
    first = list(titled_rollouts if limit is None else islice(titled_rollouts, limit + 1))
    if limit is None or len(first) <= limit:
        return first, ""
    return first[:limit], f"the first {limit:,}, and there are more; --limit 0 for all"


def _extremes(stored: StoredRun, filters: dict[str, Any], best: int, worst: int) -> Iterator[tuple[str, Rollout]]:
    seen = set()
    for title, count, order in (("best", best, "-reward"), ("worst", worst, "reward")):
        for rollout in stored.rollouts(**{**filters, "order": order, "limit": count}) if count else ():
            if rollout.id not in seen:
                seen.add(rollout.id)
                yield title, rollout


def _history(stored: StoredRun, prompt: str, filters: dict[str, Any]) -> Iterator[tuple[str, Rollout]]:
    filters.pop("limit", None)
    try:
        prompt_or_rollout: Any = stored.get(prompt)
    except RunError:
        prompt_or_rollout = prompt
    return ((f"step {rollout.step}", rollout) for rollout in stored.history(prompt_or_rollout, **filters))


def _group_of(rollout: Rollout) -> tuple[Any, ...]:
    """Return a sorting key that separates groups of the same number: training first, then by generation."""
    return rollout.split != "train", rollout.split, rollout.step, rollout.attempt, rollout.generation


def _print(titled_rollouts: list[tuple[str, Rollout]], options: Namespace) -> None:
    screen = console()
    whole = options.full or not screen.is_terminal
    if options.group is not None:
        rollouts = sorted((rollout for _, rollout in titled_rollouts), key=_group_of)
        blocks = [
            render_group(list(group), width=screen.width, max_lines=None) for _, group in groupby(rollouts, _group_of)
        ]
        group_of_blocks = Group(*(part for block in blocks for part in (*block.renderables, "")))
    elif options.history is not None:
        group_of_blocks = render_history([rollout for _, rollout in titled_rollouts], width=screen.width)
    else:
        lines = None if whole else max(options.lines, 1)
        blocks = [render_rollouts([one], width=screen.width, max_lines=lines) for one in titled_rollouts]
        group_of_blocks = Group(*(part for block in blocks for part in (*block.renderables, "")))
    show(group_of_blocks, len(group_of_blocks.renderables))
