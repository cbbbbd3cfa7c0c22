"""`rollouts plugins`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rollout_plugins.cli.common import add_json, note, print_json, print_table
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
    if shown:
        print_table(shown, spare=SPARE)
    else:
        note("no plugins are installed, not even our own: pip install rollout-plugins")
