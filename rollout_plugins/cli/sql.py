"""`rollouts sql RUN… "select …"`."""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from rollout_plugins.cli.common import RUN, add_json, busy, print_json, print_table
from rollout_plugins.show.text import clean
from rollout_plugins.store.read import Runs, open_run

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="+", help=f"{RUN}; several are queried as one, `run_id` tells them apart"
    )
    parser.add_argument(
        "query", metavar="SQL", help="one SELECT over rollouts, messages, tool_calls, annotations.<producer>"
    )
    parser.add_argument("--csv", action="store_true", help="print CSV")
    parser.add_argument("--superseded", action="store_true", help="also what a resumed attempt did again")
    add_json(parser)


def run(options: Namespace) -> None:
    found = [open_run(path) for path in options.run]
    asked = found[0] if len(found) == 1 else Runs(found)
    with busy("asking"):
        table = asked.sql(options.query, superseded=options.superseded)
    rows = table.to_pylist()
    if options.json:
        print_json(rows)
    elif options.csv:
        writer = csv.writer(sys.stdout)
        shown = _shown if sys.stdout.isatty() else _harmless
        writer.writerow(shown(name) for name in table.column_names)
        writer.writerows([shown(value) for value in row.values()] for row in rows)
    else:
        print_table(rows, table.column_names)


def _shown(value: Any) -> Any:
    """On a terminal, also with control characters written out."""
    return clean(str(_harmless(value))) if value is not None else None


def _harmless(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
