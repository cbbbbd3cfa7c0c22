"""Check, write and read annotations: columns that are added to rollouts after they were recorded."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.content.exact_json import encode, replace_surrogates
from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import first_line, wrong_columns
from rollout_plugins.reading.sql_pieces import literal, name_of
from rollout_plugins.store.annotations import PRODUCER, sql_name, write_annotations
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.schema import REWARD_PREFIX, TYPES
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import display_place, is_remote, open_run_file, remote_reader

if TYPE_CHECKING:
    from pathlib import Path

_SQL = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
#: DuckDB adds these columns to a file's own, and they determine which value is the latest.
_DUCKDB_COLUMNS = {"filename", "file_row_number"}
_ARROW = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.large_string(), "": pa.null()}


@dataclass(frozen=True, slots=True)
class Producer:
    """A person or program that annotated a run, with its columns and files."""

    name: str
    columns: Mapping[str, str]
    """The SQL type of each column, over all files of the producer."""
    shapes: Mapping[tuple[int, tuple[str, ...]], list[Path]]
    """The files, by the number of the run and the columns they hold."""


def annotate(
    folder: Path, producer: str, rows: Sequence[Mapping[str, Any]], ids: Collection[str] | None = None
) -> int:
    """Write one file for each set of columns among the rows, and return the number of rows written.

    `ids`: the ids of the run's rollouts. With it, an error is raised if no row matches a rollout.
    """
    _check_producer(producer)
    shapes: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for number, row in enumerate(rows):
        shapes.setdefault(_columns_of(row, number), []).append(row)
    unmatched_ids = unmatched(rows, ids) if ids is not None else []
    if unmatched_ids and len(unmatched_ids) == len({row["id"] for row in rows}):
        place, ids_text = display_place(folder), some_of(unmatched_ids)
        raise RunError(f"no rollout of {place} has any of these ids: {ids_text}; nothing was written")
    node = nodes_of(folder)[0]
    for columns, rows_of_shape in shapes.items():
        file = write_annotations(node, producer, _table(columns, rows_of_shape))
        if is_remote(node):
            remote_reader().send(file)
    return sum(map(len, shapes.values()))


def unmatched(rows: Iterable[Mapping[str, Any]], ids: Collection[str]) -> list[str]:
    """Return the ids in `rows` that are not in `ids`, each once."""
    known_ids = frozenset(ids)
    return [name for name in dict.fromkeys(row["id"] for row in rows) if name not in known_ids]


def some_of(names: Sequence[str]) -> str:
    """Return the first five names as text, with the number of the others."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def _check_producer(producer: Any) -> None:
    if not isinstance(producer, str) or not producer.strip():
        raise RunError(f"a producer needs a name, not {producer!r}")
    if producer.casefold() in TYPES or producer.casefold().startswith(REWARD_PREFIX):
        raise RunError(f"{producer!r} is a column of every run; give the producer another name")


def _columns_of(row: Any, number: int) -> tuple[str, ...]:
    if not isinstance(row, Mapping) or not isinstance(row.get("id"), str):
        raise RunError(
            f"row {number} of the annotations has no text 'id'; each row is {{'id': …, '<column>': value, …}}"
        )
    columns = tuple(sorted((name for name in row if name != "id"), key=str))
    if not columns:
        raise RunError(f"row {number} of the annotations has nothing but an id; add a column, such as 'score'")
    if why := _reserved(str(name) for name in columns):
        raise RunError(f"row {number} of the annotations has a column of a reserved name: {why}; choose another")
    names = {"id", *(sql_name(name).casefold() for name in columns if isinstance(name, str) and name)}
    if len(names) <= len(columns):
        named = (
            f"columns {list(columns)}; names must be text, and differ in more than case from each other and from id"
        )
        raise RunError(f"row {number} of the annotations has {named}")
    return columns


def _reserved(columns: Iterable[str]) -> str:
    """Return why these columns cannot be read if DuckDB uses one of their names for a column of its own, else ""."""
    taken = [name for name in columns if name.casefold() in _DUCKDB_COLUMNS]
    return f"{taken[0]!r} is the name of a column that DuckDB adds to every file" if taken else ""


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns_by_name = {"id": pa.array([replace_surrogates(row["id"]) for row in rows], pa.large_string())}
    for name in columns:
        values = [_scalar(row[name]) for row in rows]
        kind = _common_kind({_kind(value) for value in values})
        columns_by_name[sql_name(name)] = pa.array([_convert(value, kind) for value in values], _ARROW[kind])
    return pa.table(columns_by_name)


def _scalar(value: Any) -> Any:
    """Return the Python number in a NumPy scalar or a tensor of one element, or any other value unchanged."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _kind(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "text"
    return "float" if isinstance(value, float) else "text"


def _common_kind(kinds: set[str]) -> str:
    kinds = kinds - {""}
    if len(kinds) <= 1:
        return next(iter(kinds), "")
    return "float" if kinds == {"int", "float"} else "text"


def _convert(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "text":
        return replace_surrogates(value) if isinstance(value, str) else encode(value)
    return float(value) if kind == "float" else value


def find_producers(runs: Sequence[tuple[Path, dict[str, str]]]) -> list[Producer]:
    """Return the producers that annotated some runs, given each run's folder and its damaged files.

    Unreadable files are added to the damaged ones. Only one file of each set of columns is opened. SQL ignores case in
    names, so `Judge` and `judge` are one producer, and the latest value of both counts.
    """
    schemas: dict[tuple[Path, str], pa.Schema | None] = {}
    files_by_producer: dict[str, list[_File]] = {}
    for run, (folder, damaged) in enumerate(runs):
        for path in (path for path in files(folder) if file_name(path) not in damaged):
            key = (path.parent, path.name.split("-")[1] if path.name.count("-") >= 2 else path.name)
            if schemas.get(key) is None:
                schemas[key] = _schema(path, damaged)
            shape = schemas[key]
            if shape is not None:
                name = (shape.metadata or {}).get(PRODUCER, path.parent.name.encode()).decode("utf-8", "replace")
                files_by_producer.setdefault(name.casefold(), []).append(_File(run, path, shape, name))
    return [
        _producer(min(producer_files, key=lambda file: file.path.name).producer, producer_files)
        for producer_files in files_by_producer.values()
    ]


class _File(NamedTuple):
    run: int
    path: Path
    schema: pa.Schema
    producer: str


def files(folder: Path) -> list[Path]:
    """Return a run's annotation files, oldest first for each producer."""
    paths = [path for node in nodes_of(folder) for path in (node / "annotations").glob("*/*.parquet")]
    return [path for path in sorted(paths, key=file_name) if not path.name.startswith(".")]


def _schema(path: Path, damaged: dict[str, str]) -> pa.Schema | None:
    try:
        schema = pq.read_schema(open_run_file(path))
        why = wrong_columns(schema, {}) or _reserved(schema.names)
    except RunError:
        raise
    except Exception as error:
        why = first_line(error)
    if why:
        damaged[file_name(path)] = why
    return None if why else schema


def _producer(name: str, producer_files: Sequence[_File]) -> Producer:
    kinds: dict[str, set[str]] = {}
    shapes: dict[tuple[int, tuple[str, ...]], list[Path]] = {}
    first_spelling: dict[str, str] = {}
    for run, path, schema, _ in producer_files:
        columns = tuple(column for column in schema.names if column != "id")
        shapes.setdefault((run, columns), []).append(path)
        for column in columns:
            spelling = first_spelling.setdefault(column.casefold(), column)
            kinds.setdefault(spelling, set()).add(_kind_of(schema.field(column).type))
    return Producer(name, {column: _SQL.get(_common_kind(kind), "VARCHAR") for column, kind in kinds.items()}, shapes)


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "text"


def select(producer: Producer, read: Callable[[Sequence[Path]], str]) -> str:
    """Return SQL that selects the latest values of a producer as the columns run, `id` and `v`.

    `v` is a struct of all the producer's columns, so that `judge.score` is valid SQL and no column clashes with
    `_run`. `read` returns the SQL of a table of files.
    """
    pieces = []
    for (run, columns), paths in producer.shapes.items():
        present = {column.casefold(): column for column in columns}
        values = [
            f"{{'v': {name_of(present[column.casefold()])}::{kind}}}"
            if column.casefold() in present
            else f"null::struct(v {kind})"
            for column, kind in producer.columns.items()
        ]
        named = [f"{value} as c{number}" for number, value in enumerate(values)]
        at = "regexp_extract(filename, '[^/\\\\]*$')"
        pieces.append(
            f"select {run} as _run, id, ({at}, file_row_number) as at_, {', '.join(named)} from {read(paths)}"
        )
    latest = [f"{literal(column)}: arg_max(c{n}, at_).v" for n, column in enumerate(producer.columns)]
    return f"select _run, id, {{{', '.join(latest)}}} as v from ({' union all '.join(pieces)}) group by _run, id"
