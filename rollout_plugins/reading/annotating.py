"""Columns that are added to rollouts later: checked, written, and found again."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_plugins.content.exact_json import encode, replace_surrogates
from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import gist, wrong_columns
from rollout_plugins.reading.sql_pieces import literal, name_of
from rollout_plugins.store.annotations import PRODUCER, sql_name, write_annotations
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.schema import REWARD_PREFIX, TYPES
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import display_place, is_remote, open_run_file, remote_reader

if TYPE_CHECKING:
    from pathlib import Path

_SQL = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
#: `sql.parquet` has DuckDB add these, by which the latest value is found.
_OF_DUCKDB = {"filename", "file_row_number"}
_ARROW = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.large_string(), "": pa.null()}


@dataclass(frozen=True, slots=True)
class Producer:
    """Who annotated a run, and with what."""

    name: str
    columns: Mapping[str, str]
    """Column → SQL type, over all its files."""
    shapes: Mapping[tuple[int, tuple[str, ...]], list[Path]]
    """Files by the run they are of and the columns they hold."""


def annotate(
    folder: Path, producer: str, rows: Sequence[Mapping[str, Any]], ids: Collection[str] | None = None
) -> int:
    """Write one shard for each set of columns among the rows; returns how many rows were written.

    `ids`: those of the run's rollouts, if rows that match none of them are to be an error.
    """
    _check_producer(producer)
    shapes: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for number, row in enumerate(rows):
        shapes.setdefault(_columns_of(row, number), []).append(row)
    others = unmatched(rows, ids) if ids is not None else []
    if others and len(others) == len({row["id"] for row in rows}):
        raise RunError(
            f"no rollout of {display_place(folder)} has any of these ids: {some_of(others)}; nothing was written"
        )
    node = nodes_of(folder)[0]
    for columns, given in shapes.items():
        file = write_annotations(node, producer, _table(columns, given))
        if is_remote(node):
            remote_reader().send(file)
    return sum(map(len, shapes.values()))


def unmatched(rows: Iterable[Mapping[str, Any]], ids: Collection[str]) -> list[str]:
    """The ids among the rows that no rollout has."""
    known = frozenset(ids)
    return [name for name in dict.fromkeys(row["id"] for row in rows) if name not in known]


def some_of(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
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
    """Return why these columns cannot be read, if one has a name that DuckDB gives to a column of its own."""
    taken = [name for name in columns if name.casefold() in _OF_DUCKDB]
    return f"{taken[0]!r} is the name of a column that DuckDB adds to every file" if taken else ""


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    made = {"id": pa.array([replace_surrogates(row["id"]) for row in rows], pa.large_string())}
    for name in columns:
        values = [_scalar(row[name]) for row in rows]
        kind = _common({_kind(value) for value in values})
        made[sql_name(name)] = pa.array([_fit(value, kind) for value in values], _ARROW[kind])
    return pa.table(made)


def _scalar(value: Any) -> Any:
    """The Python number in a NumPy one or a tensor."""
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


def _common(kinds: set[str]) -> str:
    kinds = kinds - {""}
    if len(kinds) <= 1:
        return next(iter(kinds), "")
    return "float" if kinds == {"int", "float"} else "text"


def _fit(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "text":
        return replace_surrogates(value) if isinstance(value, str) else encode(value)
    return float(value) if kind == "float" else value


def find_producers(runs: Sequence[tuple[Path, dict[str, str]]]) -> list[Producer]:
    """Everyone who annotated these runs: folders, and what is known to be damaged in them, where this notes more.

    One file of each shape is opened. SQL does not tell names apart that differ only in case: `Judge` and `judge` are
    one producer, of whose values the latest count.
    """
    schemas: dict[tuple[Path, str], pa.Schema | None] = {}
    found: dict[str, list[_File]] = {}
    for run, (folder, damaged) in enumerate(runs):
        for path in (path for path in files(folder) if file_name(path) not in damaged):
            key = (path.parent, path.name.split("-")[1] if path.name.count("-") >= 2 else path.name)
            if schemas.get(key) is None:
                schemas[key] = _schema(path, damaged)
            shape = schemas[key]
            if shape is not None:
                name = (shape.metadata or {}).get(PRODUCER, path.parent.name.encode()).decode("utf-8", "replace")
                found.setdefault(name.casefold(), []).append(_File(run, path, shape, name))
    return [_producer(min(some, key=lambda file: file.path.name).producer, some) for some in found.values()]


class _File(NamedTuple):
    run: int
    path: Path
    schema: pa.Schema
    producer: str


def files(folder: Path) -> list[Path]:
    """A run's files of annotations, oldest first for each producer."""
    found = [path for node in nodes_of(folder) for path in (node / "annotations").glob("*/*.parquet")]
    return [path for path in sorted(found, key=file_name) if not path.name.startswith(".")]


def _schema(path: Path, damaged: dict[str, str]) -> pa.Schema | None:
    try:
        schema = pq.read_schema(open_run_file(path))
        why = wrong_columns(schema, {}) or _reserved(schema.names)
    except RunError:
        raise
    except Exception as error:
        why = gist(error)
    if why:
        damaged[file_name(path)] = why
    return None if why else schema


def _producer(name: str, given: Sequence[_File]) -> Producer:
    kinds: dict[str, set[str]] = {}
    shapes: dict[tuple[int, tuple[str, ...]], list[Path]] = {}
    spelled: dict[str, str] = {}
    for run, path, schema, _ in given:
        columns = tuple(column for column in schema.names if column != "id")
        shapes.setdefault((run, columns), []).append(path)
        for column in columns:
            first = spelled.setdefault(column.casefold(), column)
            kinds.setdefault(first, set()).add(_kind_of(schema.field(column).type))
    return Producer(name, {column: _SQL.get(_common(kind), "VARCHAR") for column, kind in kinds.items()}, shapes)


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "text"


def select(producer: Producer, read: Callable[[Sequence[Path]], str]) -> str:
    """SQL for what the producer said: run, `id`, and `v`, which has the latest value of each column.

    One value holds them all, so that `judge.score` reads as it is written, and no name is in the way of `_run`.
    `read` makes a table of files.
    """
    pieces = []
    for (run, columns), paths in producer.shapes.items():
        present = {column.casefold(): column for column in columns}
        made = [
            f"{{'v': {name_of(present[column.casefold()])}::{kind}}}"
            if column.casefold() in present
            else f"null::struct(v {kind})"
            for column, kind in producer.columns.items()
        ]
        named = [f"{value} as c{number}" for number, value in enumerate(made)]
        at = "regexp_extract(filename, '[^/\\\\]*$')"
        pieces.append(
            f"select {run} as _run, id, ({at}, file_row_number) as at_, {', '.join(named)} from {read(paths)}"
        )
    latest = [f"{literal(column)}: arg_max(c{n}, at_).v" for n, column in enumerate(producer.columns)]
    return f"select _run, id, {{{', '.join(latest)}}} as v from ({' union all '.join(pieces)}) group by _run, id"
