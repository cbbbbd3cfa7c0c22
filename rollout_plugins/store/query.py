"""DuckDB over the files of one run or many: read-only, and never the whole run in memory."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import os
import re
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from rollout_plugins.content.elsewhere import SCHEME, is_elsewhere, reach, spelled
from rollout_plugins.content.nodes import nodes_of
from rollout_plugins.errors import RunError
from rollout_plugins.store import annotate, sql
from rollout_plugins.store.codec import is_clean
from rollout_plugins.store.filters import (
    Column,
    Filters,
    condition,
    no_column,
    order_by,
    rewritten,
)
from rollout_plugins.store.parts import Part, UnreadableError, gist
from rollout_plugins.store.rows import integers
from rollout_plugins.store.schema import HEAVY, LIGHT, REWARD_PREFIX, SCHEMA
from rollout_plugins.store.small import MANY
from rollout_plugins.store.sql import listed, literal, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from rollout_plugins.store.annotate import Producer
    from rollout_plugins.store.small import SmallFiles

TABLES = "rollouts, messages, tool_calls and annotations.<producer>"
MAX_THREADS = 4  # each brings buffers of its own, and a run should be readable beside a training that needs the memory
_JOINS_ARROW = int(duckdb.__version__.partition(".")[0]) >= 2
_PEOPLES = ("rollouts", "messages", "tool_calls")
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_PRAGMA = re.compile(r"\s*pragma\b", re.IGNORECASE)  # DuckDB 1.5 calls it a SELECT
#: Generations in which the first rollouts with a text are looked for, before twice as many are.
_AT_ONCE = 4
_QUESTION = re.compile(r"\b(from|table)\b", re.IGNORECASE)
_FILE = "enum_code(filename::file_)::int"
#: Reward functions that get a column; names that differ from rollout to rollout would never end.
MOST_REWARDS = 500
_OURS = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException)


@dataclass(frozen=True, slots=True)
class Source:
    """One run's files, and which of its rollouts a later attempt did again."""

    folder: Path
    parts: Sequence[Part]
    tables: Mapping[Path, pa.Table]
    """What the journals hold."""
    small: SmallFiles
    restarts: Sequence[tuple[int, int]]
    """(attempt, step it was resumed from)."""
    reward_names: Sequence[str]
    damaged: dict[str, str]

    @property
    def parquet_files(self) -> list[Path]:
        return [part.path for part in self.parts if not part.is_journal]


@dataclass
class Database:
    """Views over runs: `rollouts`, `messages`, `tool_calls`, and a table for each producer of annotations."""

    sources: Sequence[Source]
    uneven: bool = False
    """Whether some files may lack columns; finding out which takes opening all of them first."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._shown, self._has_whole = "", False
        self._connection = self._connect()
        with self._asking():
            self._files()
            self.stored = self._stored()
            self._views()
            self.annotated = self._annotated_views()
            self._add_annotated("")
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
        if filters.search and filters.most is not None and not filters.order:
            return self._first_places(filters, filters.most, whole=whole)
        return self._places(filters, whole=whole)

    def _first_places(self, filters: Filters, limit: int, *, whole: bool) -> pa.Table:
        """The first of those with a text: a few generations at a time, for reading all text of a run takes long."""
        with self._lock:
            light = _view(filters.superseded, annotated=False, whole=False)
            ((start, last),) = self.rows(f"select min(generation), max(generation) from {light}")
            tables = [self._places(replace(filters, limit=0), whole=whole)]
            width = _AT_ONCE if len(self._numbers) < MANY else 2**32  # each look opens every file
            while start is not None and start <= last and limit > 0:
                some = replace(filters, limit=limit, generations=(start, start + width - 1))
                tables.append(self._places(some, whole=whole))
                start, width, limit = start + width, 2 * width, limit - tables[-1].num_rows
        return pa.concat_tables(tables)

    def _places(self, filters: Filters, *, whole: bool) -> pa.Table:
        annotated = self._mentions(filters.texts)
        is_about_content = _is_about_content(filters)
        view = _view(filters.superseded, annotated=annotated, whole=is_about_content)
        holds_question = _QUESTION.search(filters.where or "") is not None
        if is_about_content or holds_question:
            self._add_whole()
        with self._asking(f"where={filters.where!r}"):
            if holds_question:
                self._show(filters.superseded, annotated=annotated)
            if whole and self.annotated:
                return self._with_annotations(self._found(filters, view, "_file, _row, id, _run"))
            return self._found(filters, view, "_file, _row, id" if whole else "_file, _row")

    def _found(self, filters: Filters, view: str, names: str) -> pa.Table:
        """In one question, unless it holds SQL of the caller's, which is to stay the expression that it is."""
        found, order = f"from {view} where {condition(filters, view)}", order_by(filters.order, self.columns)
        most = None if filters.most is None else max(filters.most, 0)
        if filters.where is not None or filters.order:
            relation = self._connection.sql(f"select * {found}")
            if filters.where is not None:
                relation = relation.filter(rewritten(filters.where, self.columns))
            relation = relation.order(order)
            relation = (relation if most is None else relation.limit(most)).project(names)
        else:
            limit = "" if most is None else f" limit {most}"
            relation = self._connection.sql(f"select {names} {found} order by {order}{limit}")
        return relation.to_arrow_table()

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """One SELECT over the views."""
        if _SHOW_TABLES.fullmatch(query):
            return pa.table({"name": [*_PEOPLES, *(f"annotations.{name_of(name)}" for name in self.annotated)]})
        self._add_whole()
        with self._asking("the SQL"):
            written = rewritten(query, self.columns)
            found = self._connection.extract_statements(written)
            kinds = [str(statement.type).rpartition(".")[2] for statement in found]
            if kinds != ["SELECT"] or _PRAGMA.match(query):
                raise RunError(_refused(kinds))
            counted = re.sub(r"count\s*\(\s*\*\s*\)", "", query, flags=re.IGNORECASE)
            self._show(superseded, annotated="*" in counted or self._mentions(query))
            table = self._connection.sql(written).to_arrow_table()
            names = {column.spelled: name for name, column in self.stored.items() if column.spelled}
            return table.rename_columns(_distinct(names.get(name, name) for name in table.column_names))

    def read(self, files: Sequence[Path]) -> pa.Table:
        """All rows of these files, one file after the other, with the `filename` of each."""
        with self._asking():
            query = f"select {listed(SCHEMA.names)}, filename from {sql.parquet(files)}"
            found = self._connection.sql(query).to_arrow_table()
            return found.select(SCHEMA.names).cast(SCHEMA).append_column("filename", found["filename"])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of our own gives, over `current_rollouts`: without what was said in them."""
        with self._asking():
            return list(self._connection.sql(query).fetchall())

    @contextmanager
    def _asking(self, what: str = "") -> Iterator[None]:
        """One question at a time. `what` the caller wrote may be why DuckDB objects; else the files are."""
        with self._lock:
            try:
                yield
            except duckdb.Error as error:
                raise (self._error(error, what) if what else UnreadableError(_gist(error))) from error

    def _connect(self) -> Any:
        connection = duckdb.connect(":memory:")
        connection.execute(f"set threads = {min(os.cpu_count() or 1, MAX_THREADS)}")
        connection.execute("set enable_progress_bar = false")
        many = sum(len(source.parquet_files) for source in self.sources) >= MANY  # 100 kB each, for good
        for wish in (
            f"parquet_metadata_cache = {not many}",
            "async_threads = 0",  # its threads for the network's files
            "enable_external_file_cache = false",  # what is read of those is kept on disk
        ):
            with suppress(duckdb.CatalogException):  # a DuckDB that calls it something else
                connection.execute(f"set {wish}")
        connection.execute(f"set temp_directory = {literal(str(Path(tempfile.gettempdir()) / 'rollouts-duckdb'))}")
        nodes = [node for source in self.sources for node in nodes_of(source.folder)]
        folders = [name for node in nodes for name in (str(node), sql.pattern(node))]
        if away := [node for node in nodes if is_elsewhere(node)]:
            connection.register_filesystem(reach().filesystem())
            folders += [f"{SCHEME}://{folder}" for folder in away]
        try:
            connection.execute(f"set allowed_directories = [{', '.join(map(literal, folders))}]")
        except duckdb.CatalogException:  # DuckDB 1.1 can only be locked out of all files, ours too
            pass
        else:
            connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        return connection

    def _files(self) -> None:
        """`light_files` holds every row there is, without what was said."""
        self._numbers = {
            part.path: n for n, part in enumerate(part for source in self.sources for part in source.parts)
        }
        names = ", ".join(literal(spelled(path)) for path in self._numbers) or "''"
        self._connection.execute(f"create type file_ as enum ({names})")
        self._table("empty", SCHEMA.empty_table())
        for run, source in enumerate(self.sources):
            self._journal(run, source)
        in_memory = {run: self._small(run, source) for run, source in enumerate(self.sources) if not self.uneven}
        self._view("light_files", self._union(LIGHT, in_memory))

    def _journal(self, run: int, source: Source) -> None:
        """A table for the rows of a run's journals, and where they are."""
        tables = []
        for path, table in source.tables.items():
            file = pa.repeat(pa.scalar(self._numbers[path], pa.int32()), table.num_rows)
            tables.append(table.append_column("_file", file).append_column("_row", integers(range(table.num_rows))))
        if tables:
            self._table(f"journals_{run}", pa.concat_tables(tables, promote_options="permissive"))

    def _small(self, run: int, source: Source) -> frozenset[Path]:
        """Those of the run's small files that are in a table in memory."""

        def read(files: Sequence[Path]) -> pa.Table:
            (query,) = self._parquet(files, LIGHT, "filename, file_row_number as _row")
            return self._connection.sql(query).to_arrow_table()

        tables, paths = [], set[Path]()
        for files, table in source.small.light(source.parquet_files, read):
            file = integers(map(self._numbers.__getitem__, files)).take(table["_file"]).cast(pa.int32())
            tables.append(table.set_column(table.schema.get_field_index("_file"), "_file", file))
            paths.update(files)
        if tables:
            self._copy(f"small_{run}", pa.concat_tables(tables))
        return frozenset(paths)

    def _union(self, names: Sequence[str], in_memory: Mapping[int, Collection[Path]]) -> str:
        """SQL for these columns of every file."""
        pieces = [f"select {listed(names)}, null::int as _run, null::int as _file, null::bigint as _row from empty"]
        for run, source in enumerate(self.sources):
            held = in_memory.get(run, ())
            others = [path for path in source.parquet_files if path not in held]
            pieces += self._parquet(others, names, f"{run} as _run, {_FILE} as _file, file_row_number as _row")
            tables = [f"small_{run}"] * bool(held) + [f"journals_{run}"] * bool(source.tables)
            pieces += [f"select {listed(names)}, {run} as _run, _file, _row from {table}" for table in tables]
        return " union all by name ".join(pieces)

    def _parquet(self, files: Sequence[Path], names: Sequence[str], where: str) -> Iterator[str]:
        """SQL for these columns of the files, if there are any, and `where` the rows are."""
        if not files:
            return
        columns = "* exclude (filename, file_row_number)" if self.uneven else listed(names)
        query = f"select {columns}, {where} from {sql.parquet(files, uneven=self.uneven)}"
        kinds, expected = self._kinds(query), self._kinds("from empty")
        for name in names:
            found = kinds.get(name, expected[name])
            if found != expected[name] and not (self.uneven and found.endswith((")", "[]"))):
                raise UnreadableError(f"column {name} is {found}, not {expected[name]}")
        yield query

    def _stored(self) -> dict[str, Column]:
        """The columns of a rollout: those of the files, and one for each reward function that gave something."""
        kinds = {**self._kinds("from empty"), **self._kinds("from light_files")}
        columns = [Column(name, kinds[name]) for name in SCHEMA.names]
        taken = {column.name.casefold() for column in columns}
        rewards = []
        for name in self._reward_names():
            column = REWARD_PREFIX + name
            spelled = _free(column.replace("\0", "\u2400"), taken)
            taken.add(spelled.casefold())
            rewards.append(Column(column, "DOUBLE", spelled=spelled))
        at = [column.name for column in columns].index("prompt_tokens")
        return {column.name: column for column in (*columns[:at], *rewards, *columns[at:])}

    def _reward_names(self) -> list[str]:
        """Those that the run files tell of, and those that rollouts have besides."""
        told = [name for source in self.sources for name in source.reward_names]
        query = "select distinct r.name from (select unnest(rewards) as r from light_files) where r.name is not null"
        found = sorted(name for (name,) in self._connection.sql(query).fetchall())
        names = dict.fromkeys(name for name in (*told, *found) if isinstance(name, str) and is_clean(name))
        return list(names)[:MOST_REWARDS]

    def _views(self) -> None:
        """The rollouts of `light_files`; those with what was said are made when they are asked for."""
        again = [
            f"(_run = {run} and attempt < {attempt} and step > {step})" for run, attempt, step in self.done_again()
        ]
        self._again = " or ".join(again) or "false"
        self._rollouts("", "light_files", [name for name in self.stored if name not in HEAVY])

    def _rollouts(self, kind: str, files: str, names: Sequence[str]) -> None:
        """Views of the rollouts in these files: all of them, and those that no later attempt did again."""
        columns = [
            _reward(column) if name.startswith(REWARD_PREFIX) else column.sql
            for name, column in self.stored.items()
            if name in names
        ]
        self._view(f"{kind}every_rollouts", f"select {', '.join(columns)}, _run, _file, _row from {files}")
        self._view(f"{kind}current_rollouts", f"from {kind}every_rollouts where not ({self._again})")

    def _add_whole(self) -> None:
        """Views of whole rollouts. Not before they are asked for: with thousands of files each takes a moment."""
        with self._asking():
            if not self._has_whole:
                self._view("all_files", self._union(SCHEMA.names, {}))
                self._rollouts("whole_", "all_files", list(self.stored))
                self._add_annotated("whole_")
                self._has_whole = True

    def done_again(self) -> Iterator[tuple[int, int, int]]:
        """(run, attempt, step) of the attempts that did steps again, after the one they were resumed from."""
        if not any(source.restarts for source in self.sources):
            return
        query = "select _run, attempt, max(step) from light_files group by all"
        last = {(run, attempt): step for run, attempt, step in self._connection.sql(query).fetchall()}
        for run, source in enumerate(self.sources):
            for attempt, step in source.restarts:
                if (last.get((run, attempt)) or step) > step:
                    yield run, attempt, step

    def _table(self, name: str, table: pa.Table) -> None:
        """Arrow data under a name of its own; a copy for a DuckDB that cannot join what it did not store itself."""
        if _JOINS_ARROW:
            self._connection.register(name, table)
        else:
            self._copy(name, table)

    def _copy(self, name: str, table: pa.Table) -> None:
        """Arrow data as a table of DuckDB's own, which takes a moment and is quicker to ask."""
        self._connection.register("arrow_", table.combine_chunks())  # each chunk would become a row group
        self._connection.execute(f"create or replace temp table {name} as from arrow_")
        self._connection.unregister("arrow_")

    def _kinds(self, query: str) -> dict[str, str]:
        relation = self._connection.sql(query)
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def _view(self, name: str, query: str) -> None:
        self._connection.execute(f"create or replace temp view {name} as {query}")

    def _annotated_views(self) -> dict[str, Producer]:
        """A table for each producer; names that are taken are left out."""
        self._connection.execute("create schema annotations")
        annotated: dict[str, Producer] = {}
        for producer in annotate.find_producers([(source.folder, source.damaged) for source in self.sources]):
            if producer.name.casefold() not in {name.casefold() for name in (*self.stored, *annotated)}:
                said = _said(len(annotated))
                self._view(said, annotate.select(producer, partial(sql.parquet, uneven=True)))
                view = f"annotations.{name_of(producer.name)}"
                self._connection.execute(f"create view {view} as select * exclude (_run) from {said}")
                annotated[producer.name] = producer
        return annotated

    def _add_annotated(self, kind: str) -> None:
        columns, joins = _joined(self.annotated.values())
        for name in (f"{kind}every_rollouts", f"{kind}current_rollouts"):
            self._view(f"annotated_{name}", f"select r.*{columns} from {name} r{joins}")

    def _with_annotations(self, found: pa.Table) -> pa.Table:
        self._table("found_", found.append_column("_at", integers(range(found.num_rows))))
        columns, joins = _joined(self.annotated.values())
        query = f"select _file, _row, r.id{columns} from found_ r{joins} order by _at"
        return self._connection.sql(query).to_arrow_table()

    def _show(self, superseded: bool, *, annotated: bool) -> None:
        """Point the names people use at the views they asked for."""
        wanted = _view(superseded, annotated=annotated, whole=True)
        if wanted != self._shown:
            self._view("rollouts", f"select * exclude (_run, _file, _row) from {wanted}")
            base = _view(superseded, annotated=False, whole=True)
            self._view("messages", sql.messages(base))
            self._view("tool_calls", sql.tool_calls(base))
            self._shown = wanted

    def _mentions(self, text: str) -> bool:
        lowered = text.casefold()
        return any(producer.casefold() in lowered for producer in self.annotated)

    def _error(self, error: Exception, what: str) -> Exception:
        """One sentence for a mistake of the caller; everything else is about the files."""
        text = _gist(error)
        if isinstance(error, _OURS):
            return UnreadableError(text)
        missing = re.search(r'(?:column "([^"]+)" not found|key "([^"]+)" in struct)', text)
        if missing:
            return RunError(no_column(missing[1] or missing[2], self.columns))
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


def _view(superseded: bool, *, annotated: bool, whole: bool) -> str:
    kind = f"{'annotated_' if annotated else ''}{'whole_' if whole else ''}"
    return f"{kind}{'every' if superseded else 'current'}_rollouts"


def _is_about_content(filters: Filters) -> bool:
    """Whether the question is about what was said; those about numbers and names are answered without it."""
    text = filters.texts.casefold()
    inside = (filters.tool, filters.prompt, filters.messages, filters.search or None)
    return any(value is not None for value in inside) or any(name in text for name in HEAVY)


def _free(name: str, taken: Collection[str]) -> str:
    """The name, or one like it: DuckDB does not tell apart names that differ only in case."""
    numbered = (f"{name}_{number}" for number in count(1))
    return next(one for one in chain([name], numbered) if one.casefold() not in taken)


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, told apart: `a.score` and `b.score` are both called score, and a row has one value for each name."""
    made: dict[str, None] = {}
    for name in names:
        made[_free(name, {taken.casefold() for taken in made})] = None
    return list(made)


def _reward(column: Column) -> str:
    """SQL for what one reward function gave."""
    name = literal(column.name.removeprefix(REWARD_PREFIX))
    return f"rewards[list_position(list_transform(rewards, lambda r: r.name), {name})].value as {column.sql}"


def _said(number: int) -> str:
    """The view of what a producer said, and in which run."""
    return f"said_{number}"


def _joined(producers: Any) -> tuple[str, str]:
    """SQL for the columns and the joins that put every producer's values beside a rollout `r`."""
    columns = joins = ""
    for number, producer in enumerate(producers):
        columns += f", a{number}.v as {name_of(producer.name)}"
        joins += (
            f" left join (select _run, id, {annotate.struct(producer)} as v from {_said(number)}) a{number}"
            f" on a{number}.id = r.id and a{number}._run = r._run"
        )
    return columns, joins


def _refused(kinds: Sequence[str]) -> str:
    if len(kinds) == 1:
        return f"runs are read-only, and the SQL is {kinds[0]}; write one SELECT over {TABLES}"
    return f"the SQL has {len(kinds) or 'no'} statements; write one SELECT over {TABLES}"


def _gist(error: Exception) -> str:
    """The gist of an error message of DuckDB's."""
    return re.sub(r"^\w+( \w+)? Error: ", "", gist(error))
