"""Implement `rollouts view RUN`."""

from __future__ import annotations

import gc
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from rollout_hookspecs import Panel, Rollout, Run

from rollout_plugins.cli.chosen import add_filters, add_run, filters_of, note_damage, opened
from rollout_plugins.errors import RunError, need
from rollout_plugins.reading.runs import StoredRun

#: The thread switch interval while textual is imported. With Python's default, ten times as long, reading the run
#: would wait that long for each file.
_TURN = 0.0005
#: The garbage collection threshold during the import of textual, which creates no garbage. Python's default is 700.
_OBJECTS = 50_000


def configure(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--id", help="open this rollout at once")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME|MODULE:ATTR",
        help="a plugin that shows something of a rollout, in addition to the installed ones; may be given again",
    )
    add_filters(parser)


def run(options: Namespace) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunError(
            f"view needs a terminal; for text to read or to pipe: rollouts show {shlex.join(options.run or ['.'])}"
        )
    sys.setswitchinterval(_TURN)
    gc.set_threshold(_OBJECTS)
    with ThreadPoolExecutor(1) as pool:
        stored = opened(options.run)
        stats = pool.submit(stored.stats)  # runs while textual is imported
        need("textual", "view")
        from rollout_plugins.view.app import view

        filters = filters_of(options, stored)
        if options.id is not None:
            stored.get(options.id)
        if filters:
            # A wrong filter must raise before the screen opens.
            stored.rollouts(**{**filters, "search": None, "limit": 0})
        view(
            stored,
            filters=filters,
            rollout=options.id,
            panels=_panels(options.plugin),
            stats=stats.result,
            prompts=_prompts(stored),
        )
    note_damage(stored)


def _prompts(stored: StoredRun) -> Callable[[], tuple[str, list[dict[str, Any]]]] | None:
    """Return what lists the run's prompts, unless that part is not installed."""
    try:
        from rollout_plugins.learn.prompt_list import list_prompts
    except ImportError:
        return None
    return lambda: list_prompts(stored)


def _panels(plugins: Sequence[str]) -> Callable[[Rollout, Run], Sequence[Panel]]:
    """Return a function for the panels of a rollout.

    Wrong names fail now; installed plugins are loaded when needed.
    """
    from rollout_plugins.reading.panels import Panels

    if plugins:
        return Panels(plugins).of
    made = cache(Panels)
    return lambda rollout, run: made().of(rollout, run)
