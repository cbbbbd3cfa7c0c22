"""`rollouts plugins`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from rollout_plugins.cli.common import add_json, console, note, print_json, print_table, show, table_of
from rollout_plugins.engine.discover import listing

SPARE = ("order", "hooks", "version")


def configure(parser: ArgumentParser) -> None:
    add_json(parser)


def run(options: Namespace) -> None:
    rows = listing()
    if options.json:
        print_json(rows)
        return
    shown = [{name: ", ".join(value) if name == "hooks" else value for name, value in row.items()} for row in rows]
    if not shown:
        note("no plugins are installed, not even our own: pip install rollout-plugins")
    elif sys.stdout.isatty():
        show(table_of(shown, list(shown[0]), width=console().width, spare=SPARE), len(rows) + 3)
    else:
        print_table(shown)
