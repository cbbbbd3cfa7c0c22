"""DuckDB over the files of one run or many: read-only, and never the whole run in memory."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import os
import re
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from rollout_plugins.errors import RunError
from rollout_plugins.store import annotate
from rollout_plugins.store.filters import Column, Filters, condition, literal, name_of, no_column, order_by, rewritten
from rollout_plugins.store.parts import Part, integers
from rollout_plugins.store.schema import schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollout_plugins.store.annotate import Producer

TABLES = "rollouts, messages, tool_calls and annotations.<producer>"
MAX_THREADS = 4  # each brings buffers of its own, and a run should be readable beside a training that needs the memory
_JOINS_ARROW = int(duckdb.__version__.partition(".")[0]) >= 2
_PRAGMA = re.compile(r"\s*pragma\b", re.IGNORECASE)  # DuckDB 1.5 calls it a SELECT
#: Generations in which the first rollouts with a text are looked for, before twice as many are.
_AT_ONCE = 4
_FACTS = 'id, run_id, split, step, "group", rank, reward'
_MESSAGES = f"""
select {_FACTS}, part, position, m.role as role, m.content as content, m.name as name, m.reasoning as reasoning,
  m.tool_calls as tool_calls
from (
  select {_FACTS}, 'prompt' as part, generate_subscripts(prompt, 1) - 1 as position, unnest(prompt) as m from TABLE
  union all
  select {_FACTS}, 'completion' as part, generate_subscripts(completion, 1) - 1 as position, unnest(completion) as m
  from TABLE
)"""
_TOOL_CALLS = f"""
select {_FACTS}, c.turn as turn, c.position as position, c.name as name, c.arguments as arguments,
  coalesce(c.result, completion[c.reply + 1].content) as result, c.error as error, c.status as status,
  c.seconds as seconds
from (select {_FACTS}, completion, unnest(tool_calls) as c from TABLE)"""
_OURS = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException)


class UnreadableError(Exception):
    """DuckDB could not read the files; which one is for the caller to find out."""


@dataclass(frozen=True, slots=True)
class Source:
    """One run's files, and which of its rollouts a later attempt did again."""

    folder: Path
    parts: Sequence[Part]
    tables: Mapping[Path, pa.Table]
    """The journals, mapped into memory."""
    restarts: Sequence[tuple[int, int]]
    """(attempt, step it was resumed from)."""
    reward_names: Sequence[str] = ()


@dataclass
class Database:
    """Views over runs: `rollouts`, `messages`, `tool_calls`, and a table for each producer of annotations."""

    sources: Sequence[Source]
    damaged: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._shown = ""
        self._connection = self._connect()
        try:
            self._views()
            kinds = self._kinds("current_rollouts")
            self.stored = {name: Column(name, kind) for name, kind in kinds.items() if not name.startswith("_")}
            for name, kind in self._kinds("empty_0").items():
                if kinds[name] != kind and not kind.endswith((")", "[]")):
                    raise UnreadableError(f"column {name} is {kinds[name]}, not {kind}")
            self.annotated = self._annotated_views()
        except duckdb.Error as error:
            raise UnreadableError(first_line(error)) from error
        self.columns: dict[str, Column] = {
            **self.stored,
            **{
                f"{producer.name}.{name}": Column(name, kind, producer.name)
                for producer in self.annotated.values()
                for name, kind in producer.columns.items()
            },
        }

    def places(self, filters: Filters, *, whole: bool = False) -> pa.Table:
        """Where the rollouts are, in order: `_file`, `_row`; with `whole`, also `id` and what producers said."""
        if filters.search and filters.limit is not None and not filters.order:
            return self._first_places(filters, filters.limit, whole=whole)
        return self._places(filters, whole=whole)

    def _first_places(self, filters: Filters, limit: int, *, whole: bool) -> pa.Table:
        """The first of those with a text: a few generations at a time, for reading all text of a run takes long."""
        with self._lock:
            view = _view(filters.superseded, annotated=False)
            ((start, last),) = self.rows(f"select min(generation), max(generation) from {view}")
            tables = [self._places(replace(filters, limit=0), whole=whole)]
            width = _AT_ONCE
            while start is not None and start <= last and limit > 0:
                some = replace(filters, limit=limit, generations=(start, start + width - 1))
                tables.append(self._places(some, whole=whole))
                start, width, limit = start + width, 2 * width, limit - tables[-1].num_rows
        return pa.concat_tables(tables)

    def _places(self, filters: Filters, *, whole: bool) -> pa.Table:
        view = _view(filters.superseded, annotated=self._mentions(filters.texts))
        with self._lock:
            try:
                relation = self._connection.sql(f"select * from {view} where {condition(filters, view)}")
                if filters.where is not None:
                    relation = relation.filter(rewritten(filters.where, self.stored))
                relation = relation.order(order_by(filters.order, self.columns))
                if filters.limit is not None:
                    relation = relation.limit(max(filters.limit, 0))
                found = relation.project("enum_code(_file)::int as _file, _row, id")
                if whole and self.annotated:
                    return self._with_annotations(found)
                return (found if whole else found.project("_file, _row")).to_arrow_table()
            except duckdb.Error as error:
                raise self._error(error, f"where={filters.where!r}") from error

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """One SELECT over the views."""
        with self._lock:
            try:
                found = self._connection.extract_statements(query)
                kinds = [str(statement.type).rpartition(".")[2] for statement in found]
                if kinds != ["SELECT"] or _PRAGMA.match(query):
                    raise RunError(_refused(kinds))
                counted = re.sub(r"count\s*\(\s*\*\s*\)", "", query, flags=re.IGNORECASE)
                self._show(superseded, annotated="*" in counted or self._mentions(query))
                return self._connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                raise self._error(error, "the SQL") from error

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of our own gives, over `current_rollouts`."""
        with self._lock:
            try:
                return list(self._connection.sql(query).fetchall())
            except duckdb.Error as error:
                raise UnreadableError(first_line(error)) from error

    def _connect(self) -> Any:
        connection = duckdb.connect(":memory:")
        connection.execute(f"set threads = {min(os.cpu_count() or 1, MAX_THREADS)}")
        connection.execute("set enable_progress_bar = false")
        for wish in ("parquet_metadata_cache = true", "async_threads = 0"):  # its threads for files of the network
            with suppress(duckdb.CatalogException):  # a DuckDB that calls it something else
                connection.execute(f"set {wish}")
        connection.execute(f"set temp_directory = {literal(str(Path(tempfile.gettempdir()) / 'rollouts-duckdb'))}")
        folders = [spelled for source in self.sources for spelled in (str(source.folder), _pattern(source.folder))]
        try:
            connection.execute(f"set allowed_directories = [{', '.join(map(literal, folders))}]")
        except duckdb.CatalogException:  # DuckDB 1.1 can only be locked out of all files, ours too
            pass
        else:
            connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        return connection

    def _views(self) -> None:
        self.files = [str(part.path) for source in self.sources for part in source.parts]
        self._connection.execute(f"create type file_ as enum ({', '.join(map(literal, self.files or ['']))})")
        pieces, redone = [], []
        for number, source in enumerate(self.sources):
            pieces += self._pieces(number, source)
            again = [f"(attempt < {attempt} and step > {step})" for attempt, step in source.restarts]
            redone += [f"(_run = {number} and ({' or '.join(again)}))"] if again else []
        self._view("every_rollouts", " union all by name ".join(pieces))
        self._view("current_rollouts", f"from every_rollouts where not ({' or '.join(redone) or 'false'})")

    def _pieces(self, number: int, source: Source) -> list[str]:
        """SQL for each kind of file; an empty table first, so that every run has every column."""
        self._table(f"empty_{number}", pa.Table.from_batches([], schema=schema(source.reward_names)))
        pieces = [f"select *, {number} as _run, null::file_ as _file, null::bigint as _row from empty_{number}"]
        parquet = [part.path for part in source.parts if not part.is_journal]
        if parquet:
            where = f"{number} as _run, filename::file_ as _file, file_row_number as _row"
            pieces.append(f"select * exclude (filename, file_row_number), {where} from {_read(parquet)}")
        for part in (part for part in source.parts if part.is_journal):
            table, name = source.tables[part.path], f"journal_{self.files.index(str(part.path))}"
            self._table(name, table.append_column("_row", integers(range(table.num_rows))))
            pieces.append(f"select *, {number} as _run, {literal(str(part.path))}::file_ as _file from {name}")
        return pieces

    def _table(self, name: str, table: pa.Table) -> None:
        """Arrow data under a name of its own; a copy for a DuckDB that cannot join what it did not store itself."""
        if _JOINS_ARROW:
            self._connection.register(name, table)
        else:
            self._connection.register("arrow_", table)
            self._connection.execute(f"create or replace temp table {name} as from arrow_")
            self._connection.unregister("arrow_")

    def _kinds(self, view: str) -> dict[str, str]:
        relation = self._connection.sql(f"from {view}")
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def _view(self, name: str, query: str) -> None:
        self._connection.execute(f"create or replace temp view {name} as {query}")

    def _annotated_views(self) -> dict[str, Producer]:
        """A table for each producer, and the rollouts with one column for each; names that are taken are left out."""
        self._connection.execute("create schema annotations")
        annotated: dict[str, Producer] = {}
        for producer in annotate.find_producers([source.folder for source in self.sources], self.damaged):
            if producer.name.casefold() not in {name.casefold() for name in (*self.stored, *annotated)}:
                annotated[producer.name] = producer
                view = f"annotations.{name_of(producer.name)}"
                self._connection.execute(f"create view {view} as {annotate.select(producer, _read)}")
        columns, joins = _joined(annotated.values())
        for name in ("every", "current"):
            self._view(f"annotated_{name}_rollouts", f"select r.*{columns} from {name}_rollouts r{joins}")
        return annotated

    def _with_annotations(self, relation: Any) -> pa.Table:
        found = relation.to_arrow_table()
        self._table("found_", found.append_column("_at", integers(range(found.num_rows))))
        columns, joins = _joined(self.annotated.values())
        query = f"select _file, _row, r.id{columns} from found_ r{joins} order by _at"
        return self._connection.sql(query).to_arrow_table()

    def _show(self, superseded: bool, *, annotated: bool) -> None:
        """Point the names people use at the views they asked for."""
        wanted = _view(superseded, annotated=annotated)
        if wanted != self._shown:
            self._view("rollouts", f"select * exclude (_run, _file, _row) from {wanted}")
            base = _view(superseded, annotated=False)
            self._view("messages", _MESSAGES.replace("TABLE", base))
            self._view("tool_calls", _TOOL_CALLS.replace("TABLE", base))
            self._shown = wanted

    def _mentions(self, text: str) -> bool:
        lowered = text.casefold()
        return any(producer.casefold() in lowered for producer in self.annotated)

    def _error(self, error: Exception, what: str) -> Exception:
        """One sentence for a mistake of the caller; everything else is about the files."""
        text = first_line(error)
        if isinstance(error, _OURS):
            return UnreadableError(text)
        missing = re.search(r'column "([^"]+)" not found', text)
        if missing:
            return RunError(no_column(missing[1], self.columns))
        if isinstance(error, duckdb.PermissionException):
            return RunError(f"{what} reaches outside the run; it may read {TABLES}")
        if re.search(r"[Tt]able with name", text):
            return RunError(f"{what}: {text}; there are {TABLES}")
        if isinstance(error, duckdb.ProgrammingError | duckdb.DataError):
            accepted = (
                "write one SELECT" if what == "the SQL" else "write a condition such as reward < 0 and step > 10"
            )
            return RunError(f"{what} is not understood: {text}; {accepted}, in DuckDB's SQL")
        return UnreadableError(text)


def _view(superseded: bool, *, annotated: bool) -> str:
    return f"{'annotated_' if annotated else ''}{'every' if superseded else 'current'}_rollouts"


def _joined(producers: Any) -> tuple[str, str]:
    """SQL for the columns and the joins that put every producer's values beside a rollout `r`."""
    columns = joins = ""
    for number, producer in enumerate(producers):
        table = f"annotations.{name_of(producer.name)}"
        columns += f", a{number}.v as {name_of(producer.name)}"
        joins += (
            f" left join (select id, {annotate.struct(producer)} as v from {table}) a{number} on a{number}.id = r.id"
        )
    return columns, joins


def _refused(kinds: Sequence[str]) -> str:
    if len(kinds) == 1:
        return f"runs are read-only, and the SQL is {kinds[0]}; write one SELECT over {TABLES}"
    return f"the SQL has {len(kinds) or 'no'} statements; write one SELECT over {TABLES}"


def _read(paths: Sequence[Path]) -> str:
    """SQL for a table of Parquet files."""
    names = ", ".join(literal(_pattern(path)) for path in paths)
    return f"read_parquet([{names}], union_by_name = true, filename = true, file_row_number = true)"


def _pattern(path: Path) -> str:
    """The path as DuckDB's file patterns write it."""
    return re.sub(r"[\[*?]", r"[\g<0>]", str(path))


def first_line(error: Exception) -> str:
    """The gist of an error message of DuckDB's."""
    return re.sub(r"^\w+( \w+)? Error: ", "", str(error).strip().partition("\n")[0])
