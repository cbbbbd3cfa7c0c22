"""Implement `rollouts annotate RUN --producer P FILE`."""

from __future__ import annotations

import csv
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TextIO

from rollout_plugins.cli.chosen import add_one_run, note_damage, note_pruned, opened
from rollout_plugins.cli.common import add_json, busy, counted, note, print_json, say
from rollout_plugins.errors import RunError
from rollout_plugins.reading.annotating import some_of, unmatched
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.system.labels import count


def configure(parser: ArgumentParser) -> None:
    add_one_run(parser)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="JSON lines, CSV or Parquet with a column id; - for JSON lines on stdin",
    )
    parser.add_argument(
        "--by",
        metavar="MODULE:FUNCTION",
        help="instead of a file: a function of an Arrow table of rollouts that returns a value for each",
    )
    parser.add_argument("--columns", help="what the function is given (default: prompt,completion)")
    parser.add_argument("--ray", metavar="ADDRESS", help="run the function with Ray; local for this machine")
    parser.add_argument("--producer", required=True, metavar="P", help="who says so; its columns become P.<column>")
    add_json(parser)


def run(options: Namespace) -> None:
    if (options.file is None) == (options.by is None):
        raise RunError("give the values: a FILE of them, or --by MODULE:FUNCTION, one of the two")
    if options.file and (options.columns or options.ray):
        raise RunError("--columns and --ray are for --by alone; a FILE has its own columns")
    stored = opened(options.run)
    if options.by:
        _annotate_by(stored, options)
        return
    with busy("reading and writing"):
        rows = _rows(options.file)
        written = stored.annotate(options.producer, rows)
        others = unmatched(rows, stored.table(["id"], superseded=True)["id"].to_pylist())
    note_damage(stored)
    matched = len({row["id"] for row in rows}) - len(others)
    if options.json:
        facts = {"written": written, "matched_ids": matched, "unknown_ids": len(others)}
        print_json({**facts, "columns": stored.annotations.get(options.producer, [])})
        return
    columns = ", ".join(f"{options.producer}.{name}" for name in stored.annotations.get(options.producer, []))
    say(
        f"{count(written, 'row')} for {count(matched, 'rollout')}; the columns of {options.producer} are now {columns}"
    )
    if others:
        note(f"{len(others):,} of these ids are not in {stored.place} (yet): {some_of(others)}")


def _annotate_by(stored: StoredRun, options: Namespace) -> None:
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = resolve_name(options.by)
    except (ValueError, ImportError, AttributeError) as error:
        raise RunError(f"--by {options.by!r} names no function: {error}; write MODULE:FUNCTION") from error
    what = "rollouts" if options.ray else "files"
    with counted(what) as progress:
        written = stored.annotate_by(
            options.producer,
            function,
            columns=(options.columns or "prompt,completion").split(","),
            ray=options.ray,
            progress=lambda done, of: progress(what, done, of),
        )
    note_damage(stored)
    note_pruned(stored, "were given to the function", superseded=True)
    columns = stored.annotations.get(options.producer, [])
    if options.json:
        print_json({"written": written, "columns": columns})
        return
    named = ", ".join(f"{options.producer}.{name}" for name in columns)
    say(f"{written:,} rows; the columns of {options.producer} are now {named}")


def _rows(name: str) -> list[dict[str, Any]]:
    try:
        return list(_read(name))
    except UnicodeDecodeError as error:
        raise RunError(f"{name} is not text in UTF-8: {error}; nothing was written") from error


def _read(name: str) -> Iterator[dict[str, Any]]:
    if name == "-":
        return _json_lines(sys.stdin, "standard input")
    path = Path(name)
    if path.suffix == ".parquet":
        return _parquet(path)
    return _csv(path) if path.suffix in {".csv", ".tsv"} else _file_of_json_lines(path)


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # `key=value` in the path must not become a column.
        table = pq.read_table(path, partitioning=None)
    except pa.ArrowException as error:
        raise RunError(f"{path} is not a Parquet file: {error}") from error
    yield from table.to_pylist()


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)  # a completion may be longer than Python's default limit of 128 kB
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","):
            yield {name: value if name == "id" else _typed(value) for name, value in row.items() if name}


def _typed(text: str | None) -> Any:
    """Convert a CSV cell: numbers, true and false, and None for an empty cell."""
    if not text:
        return None
    try:
        return json.loads(text) if text in {"true", "false"} or text[0] in "-0123456789" else text
    except ValueError:
        return text


def _file_of_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig") as file:
        yield from _json_lines(file, str(path))


def _json_lines(file: TextIO, name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise RunError(f"line {number} of {name} is not JSON: {error}; nothing was written") from error
