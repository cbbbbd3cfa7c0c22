"""Implement `rollouts sql [RUN…] "select …"`."""

from __future__ import annotations

import csv
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from rollout_plugins.cli.chosen import RUN, add_allow_damaged, note_damage, opened
from rollout_plugins.cli.common import add_json, busy, print_json, print_table
from rollout_plugins.content.json_safe import json_text, spell_non_finite
from rollout_plugins.errors import RunError
from rollout_plugins.reading.multi_node import combine_nodes
from rollout_plugins.reading.runs import Runs, StoredRun
from rollout_plugins.show.text import clean

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="*",
        help=f"{RUN}; several are queried as one, `run_id` tells them apart; default: the newest run in or below this "
        "folder",
    )
    parser.add_argument(
        "query", metavar="SQL", help="one SELECT over rollouts, messages, tool_calls, steps, annotations.<producer>"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--csv", action="store_true", help="print CSV")
    add_json(printed)
    parser.add_argument(
        "--superseded", action="store_true", help="also rollouts of steps that a resumed attempt repeated"
    )
    add_allow_damaged(parser)


def run(options: Namespace) -> int:
    _check_order(options.run, options.query)
    runs = [StoredRun(folder) for folder in combine_nodes(opened(path).dir for path in options.run or [None])]
    asked = runs[0] if len(runs) == 1 else Runs(runs)
    with busy("asking"):
        table = asked.sql(options.query, superseded=options.superseded)
    rows = [{name: _json_value(value) for name, value in row.items()} for row in table.to_pylist()]
    if options.json:
        print_json(rows)
    elif options.csv:
        writer = csv.writer(sys.stdout)
        shown = _shown if sys.stdout.isatty() else _harmless
        writer.writerow(shown(name) for name in table.column_names)
        writer.writerows([shown(value) for value in row.values()] for row in rows)
    else:
        print_table(rows, table.column_names)
    return note_damage(*runs, allowed=options.allow_damaged)


def _check_order(paths: Sequence[str], query: str) -> None:
    """Refuse SQL anywhere but in the last argument."""
    if not _exists(query):
        return
    words = [path for path in paths if not _exists(path)]
    where = " ".join([*filter(_exists, paths), query])
    raise RunError(f'the SQL comes last: rollouts sql {where} "{words[0] if words else "select …"}"')


def _shown(value: Any) -> Any:
    """Escape control characters for a terminal."""
    return clean(str(_harmless(value))) if value is not None else None


def _exists(word: str) -> bool:
    return os.path.exists(word)  # noqa: PTH110 - a `Path` raises where the word is longer than a name may be


def _json_value(value: Any) -> Any:
    """Return a value with JSON types only, at any depth. Dates stay dates."""
    if isinstance(value, list):
        is_map = bool(value) and all(isinstance(item, tuple) for item in value)
        return _json_value({str(key): item for key, item in value}) if is_map else list(map(_json_value, value))
    if isinstance(value, dict):
        return {name: _json_value(item) for name, item in value.items()}
    if isinstance(value, Decimal):
        number = int(value) if value == value.to_integral_value() else float(value)
        return number if Decimal(repr(number)) == value else str(value)
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    return _span(value) if isinstance(value, pa.MonthDayNano) else value


def _span(span: Any) -> str:
    """Return a time span as text: 1 month 2 days 0.5 seconds."""
    numbers = {"month": span.months, "day": span.days, "second": span.nanoseconds / 1e9}
    return (
        " ".join(f"{number:g} {unit}{'s' * (number != 1)}" for unit, number in numbers.items() if number)
        or "0 seconds"
    )


def _harmless(value: Any) -> Any:
    """Return lists and records as JSON, and quote text that a spreadsheet would evaluate as a formula."""
    if isinstance(value, (list, dict)):
        return json_text(spell_non_finite(value))
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
