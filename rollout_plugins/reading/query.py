"""Query the files of one run or several through DuckDB."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from rollout_plugins.content.exact_json import is_valid_unicode
from rollout_plugins.errors import RunError
from rollout_plugins.reading import annotating as annotate
from rollout_plugins.reading import sql_pieces as sql
from rollout_plugins.reading import step_log, summary
from rollout_plugins.reading.damage import UnreadableError, first_line
from rollout_plugins.reading.filters import (
    Column,
    Filters,
    condition,
    order_by,
    rewrite_sql,
    unknown_column,
    with_bare_names,
)
from rollout_plugins.reading.sql_pieces import listed, literal, name_of
from rollout_plugins.reading.tables import Tables
from rollout_plugins.store.any_version import integers
from rollout_plugins.store.schema import HEAVY, REWARD_PREFIX, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rollout_plugins.reading.annotating import Producer
    from rollout_plugins.reading.tables import Source

TABLES = "rollouts, messages, tool_calls, steps and annotations.<producer>"
_PUBLIC_VIEWS = ("rollouts", "messages", "tool_calls", "steps")
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_PRAGMA = re.compile(r"\s*pragma\b", re.IGNORECASE)  # DuckDB 1.5 classifies it as a SELECT
#: How many generations a text search with a limit reads at first; the number doubles each time.
_FIRST_GENERATIONS = 4
_MISSING = re.compile(
    r'column (named )?"(?P<column>[^"]+)"( not found|\s*$)|key "(?P<key>[^"]+)" in struct', re.MULTILINE
)
_SUBQUERY = re.compile(r"\b(from|table)\b", re.IGNORECASE)
#: The most reward functions that get a column, in case their names differ from rollout to rollout.
MOST_REWARDS = 500
#: The most logged names that get a column.
MOST_LOGGED = 1000
_NO_FILTERS = Filters()
_GENERATION_COLUMNS = {"split", "step", "attempt", "generation"}
_FILE_ERRORS = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException)


class Database:
    """DuckDB views over runs: `rollouts`, `messages`, `tool_calls`, `steps`, and a table for each producer.

    Internal queries use others: `every_rollouts`, and `current_rollouts` without superseded ones. The prefix `whole_`
    adds the content columns, and `annotated_` the annotations. `every_generations`, `current_generations` and the like
    have the sums.
    """

    def __init__(self, sources: Sequence[Source], files: Sequence[Path], *, uneven: bool = False) -> None:
        """`files`: all files, whose index is the column `_file`."""
        self._lock = threading.RLock()
        self._rollouts_view = ""
        self._created: set[str] = set()
        self._log_columns: dict[str, str] | None = None
        with self._querying():
            self._tables = Tables(sources, files, uneven=uneven)
            self._connection = self._tables.connection
            self._done_again: list[tuple[int, int, int]] = []
            self._create_sum_views()
            if again := list(self._find_repeats()):
                self._done_again = again
                self._create_sum_views()
            self.stored = self._rollout_columns()
            self.annotated = self._create_annotation_views(sources)
        self.columns: dict[str, Column] = {
            **self.stored,
            **{
                f"{producer.name}.{name}": Column(name, kind, producer.name)
                for producer in self.annotated.values()
                for name, kind in producer.columns.items()
            },
        }

    def places(self, filters: Filters, *, with_annotations: bool = False) -> pa.Table:
        """Return the places of matching rollouts in order: `_file` and `_row`.

        With `whole`, also their `id` and annotations.
        """
        if filters.search and filters.most is not None and not filters.order:
            return self._first_places(filters, filters.most, with_annotations=with_annotations)
        return self._places(filters, with_annotations=with_annotations)

    def _first_places(self, filters: Filters, limit: int, *, with_annotations: bool) -> pa.Table:
        """Return the first matches of a text search.

        It reads a few generations at a time, because reading all is slow.
        """
        with self._lock:
            query = f"select min(generation), max(generation) from {_sums_view(filters.superseded)}"
            ((start, last),) = self.rows(query)
            place_tables = [self._places(replace(filters, limit=0), with_annotations=with_annotations)]
            width = 2**32 if self._tables.has_many_files else _FIRST_GENERATIONS  # each round opens every file
            while start is not None and start <= last and limit > 0:
                next_filters = replace(filters, limit=limit, generations=(start, start + width - 1))
                place_tables.append(self._places(next_filters, with_annotations=with_annotations))
                start, width, limit = start + width, 2 * width, limit - place_tables[-1].num_rows
        return pa.concat_tables(place_tables)

    def total(self, filters: Filters) -> int:
        """Return the number of matching rollouts."""
        order_by(filters.order, self.columns)  # raises an error if a column does not exist
        if replace(filters, order=None) == replace(when := _time_filters(filters), superseded=filters.superseded):
            return self.count(when, superseded=filters.superseded)
        if filters.limit is not None:
            return int(self.places(filters).num_rows)
        return int(self._places(filters, with_annotations=False, count_only=True)["n"][0].as_py())

    def _places(self, filters: Filters, *, with_annotations: bool, count_only: bool = False) -> pa.Table:
        annotated = self._mentions(filters.texts)
        is_about_content = _is_about_content(filters)
        view = _view_name(filters.superseded, annotated=annotated, with_content=is_about_content)
        holds_question = _SUBQUERY.search(filters.where or "") is not None
        self._add_views(with_content=is_about_content)
        with self._querying(f"where={filters.where!r}"):
            if holds_question:
                self._point_views(filters.superseded, annotated=annotated)
            if count_only:
                return self._with_bare_names(
                    lambda columns: (
                        self._matching_rollouts(filters, view, columns).aggregate("count(*) as n").to_arrow_table()
                    )
                )
            if with_annotations and self.annotated:
                return self._with_annotations(self._ordered_places(filters, view, "_file, _row, id, _run"))
            return self._ordered_places(filters, view, "_file, _row, id" if with_annotations else "_file, _row")

    def _with_bare_names(self, ask: Callable[[Mapping[str, Column]], pa.Table]) -> pa.Table:
        """Run a query; if a bare name is unknown, run it again with the reward function's column of that name."""
        columns: Mapping[str, Column] = self.columns
        while True:
            try:
                return ask(columns)
            except duckdb.BinderException as error:
                missing = _MISSING.search(str(error))
                more = with_bare_names(columns, [missing["column"]] if missing and missing["column"] else [])
                if len(more) == len(columns):
                    raise
                columns = more

    def _matching_rollouts(self, filters: Filters, view: str, columns: Mapping[str, Column]) -> Any:
        """Return the matching rollouts as a DuckDB relation. The caller's SQL stays an expression of its own."""
        relation = self._connection.sql(f"select * from {view} where {self._condition(filters)}")
        if filters.where is None:
            return relation
        return relation.filter(rewrite_sql(filters.where, columns, without_nan=True))

    def _ordered_places(self, filters: Filters, view: str, names: str) -> pa.Table:
        """Return the places of matching rollouts in order."""
        return self._with_bare_names(lambda columns: self._query_places(filters, view, names, columns))

    def _query_places(self, filters: Filters, view: str, names: str, columns: Mapping[str, Column]) -> pa.Table:
        """Return the places of matching rollouts, in a single query if possible."""
        order = order_by(filters.order, columns)
        most = None if filters.most is None else max(filters.most, 0)
        if filters.where is not None or filters.order:
            relation = self._matching_rollouts(filters, view, columns).order(order)
            relation = (relation if most is None else relation.limit(most)).project(names)
        else:
            where, limit = self._condition(filters), "" if most is None else f" limit {most}"
            relation = self._connection.sql(f"select {names} from {view} where {where} order by {order}{limit}")
        return relation.to_arrow_table()

    def _condition(self, filters: Filters) -> str:
        """Return SQL for all filters except `where`, which also excludes files that cannot have a match."""
        sums_view = _sums_view(filters.superseded)
        matches = condition(filters, sums_view)
        time_filters = _time_filters(filters)
        if time_filters == _NO_FILTERS:
            return matches
        is_in_time = condition(time_filters, sums_view)
        query = f"select distinct generation from {sums_view} where {is_in_time} order by generation"
        generations = [generation for (generation,) in self._connection.sql(query).fetchall()]
        if None in generations:
            return matches
        files = self._tables.files_with(generations)
        return matches if files is None else f"_file in ({', '.join(map(str, files)) or 'null'}) and {matches}"

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """Run one SELECT over the views."""
        if _SHOW_TABLES.fullmatch(query):
            return pa.table({"name": self._names_of_tables})
        with self._querying("the SQL"):
            statements = self._connection.extract_statements(rewrite_sql(query, self.columns))
            kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
            if kinds != ["SELECT"] or _PRAGMA.match(query):
                raise RunError(_refusal(kinds))
            if "steps" in query.casefold():
                self._point_steps_view(superseded)
            without_count = re.sub(r"count\s*\(\s*\*\s*\)", "", query, flags=re.IGNORECASE)
            self._point_views(superseded, annotated="*" in without_count or self._mentions(query))
            table = self._with_bare_names(
                lambda columns: self._connection.sql(rewrite_sql(query, columns)).to_arrow_table()
            )
            names = {column.spelled: name for name, column in self.stored.items() if column.spelled}
            return table.rename_columns(_distinct_names(names.get(name, name) for name in table.column_names))

    def read(self, files: Sequence[Path]) -> pa.Table:
        """Return all rows of the files, in the order of the files, with the `filename` of each row."""
        with self._querying():
            query = f"select {listed(SCHEMA.names)}, filename from {sql.parquet(files)}"
            rows = self._connection.sql(query).to_arrow_table()
            return rows.select(SCHEMA.names).cast(SCHEMA).append_column("filename", rows["filename"])

    def values(self, name: str) -> list[Any]:
        """Return the distinct values of a column in order, without NaN."""
        columns = with_bare_names(self.columns, [name])
        if (column := columns.get(name)) is None:
            raise RunError(unknown_column(name, self.columns))
        if name in _GENERATION_COLUMNS:
            view = _sums_view(superseded=True)
        else:
            with_content = name in HEAVY
            self._add_views(with_content=with_content)
            view = _view_name(superseded=True, annotated=bool(column.producer), with_content=with_content)
        is_value = f"not isnan({column.sql})" if column.may_be_nan else "true"
        query = f"select distinct {column.sql} as v from {view} where v is not null and {is_value} order by v"
        with self._querying(f"the column {name!r}"):
            return [row[0] for row in self._connection.sql(query).fetchall()]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run an internal query over sums, or over rollouts without their content."""
        if "_rollouts" in query:
            self._add_views(with_content=False)
        with self._querying():
            return list(self._connection.sql(query).fetchall())

    def count(self, time_filters: Filters = _NO_FILTERS, *, superseded: bool) -> int:
        """Return the number of rollouts, or of those that the time filters in `when` select, from the sums alone."""
        sums_view = _sums_view(superseded)
        query = f"select coalesce(sum(rollouts), 0) from {sums_view} where {condition(time_filters, sums_view)}"
        with self._querying(f"where={time_filters.where!r}"):
            return int(self._connection.sql(query).fetchall()[0][0])

    def count_by_file(self) -> dict[Path, Counter[tuple[int, int, str]]]:
        """Count the rollouts in each file by the attempt, rank and split in its rows."""
        counts: dict[Path, Counter[tuple[int, int, str]]] = {}
        query = "select _file, attempt, rank, split, count(*) from every_rollouts group by all"
        for number, attempt, rank, split, rollouts in self.rows(query):
            counts.setdefault(self._tables.files[number], Counter())[attempt, rank, split] += rollouts
        return counts

    def stats(self, *, width: int = 1) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the run's statistics, and a row for each `width` neighbouring steps."""
        functions = [name.removeprefix(REWARD_PREFIX) for name in self.stored if name.startswith(REWARD_PREFIX)]
        names, query = summary.query(functions, width=width)
        with self._querying():
            if self._connection.sql(summary.mingled("every")).fetchall()[0][0]:
                self._tables.add_sums(merge_groups=False)
                self._create_sum_views()
            return names, self._connection.sql(query).fetchall()

    def log_columns(self) -> dict[str, str]:
        """Return the names that the trainer logged, in order of appearance, with the column of each in `steps`."""
        with self._querying():
            if self._log_columns is None:
                logs = [step_log.read_log(source.folder, source.damaged) for source in self._tables.sources]
                self._tables.table("logged", step_log.number_rows(logs))
                query = "select name from logged where value is not null group by name order by min(_row)"
                names = [name for (name,) in self._connection.sql(query).fetchall()]
                self._log_columns = step_log.name_columns(names[:MOST_LOGGED])
                self._tables.view("current_logged", step_log.current_log(self._is_superseded))
                self._tables.view("current_steps", step_log.steps_table(self._log_columns, "current_logged"))
            return self._log_columns

    def logged(self, *, width: int = 1) -> dict[int, dict[str, float]]:
        """Return the means of the logged values by the first of each `width` neighbouring steps."""
        columns = self.log_columns()
        if not columns:
            return {}
        first = "coalesce((select min(step) from current_generations), 0)"
        point = f"step - (step - {first}) % {width}"
        means = ", ".join(f"avg({name_of(column)})" for column in columns.values())
        rows = self.rows(f"select {point} as point, {means} from current_steps group by point")
        names = [step_log.PREFIX + name for name in columns]
        return {point: dict(zip(names, values, strict=True)) for point, *values in rows}

    def _point_steps_view(self, superseded: bool) -> None:
        """Point the view `steps` at the current rows, or at all rows with `superseded`."""
        columns = self.log_columns()
        self._tables.view("steps", step_log.steps_table(columns, "logged") if superseded else "from current_steps")

    def done_again(self) -> list[tuple[int, int]]:
        """Return (attempt, step) of each attempt that repeated steps after the one from which it resumed."""
        return [(attempt, step) for _, attempt, step in self._done_again]

    @contextmanager
    def _querying(self, what: str = "") -> Iterator[None]:
        """Run one query at a time, and translate DuckDB's errors.

        `what` describes SQL of the caller, if there is any.
        """
        with self._lock:
            try:
                yield
            except duckdb.Error as error:
                raise (self._error(error, what) if what else UnreadableError(_duckdb_message(error))) from error

    def _create_sum_views(self) -> None:
        """Create the views of the sums."""
        for name in ("generations", "groups", "rewards"):
            self._tables.view(f"every_{name}", f"from {name}")
            self._tables.view(f"current_{name}", f"from {name} where not ({self._is_superseded})")

    def _find_repeats(self) -> Iterator[tuple[int, int, int]]:
        """Yield (run, attempt, step) of each attempt that repeated steps."""
        query = "select _run, attempt, max(step) from generations group by all"
        last = {(run, attempt): step for run, attempt, step in self._connection.sql(query).fetchall()}
        for run, source in enumerate(self._tables.sources):
            for attempt, step in source.restarts:
                if (last.get((run, attempt)) or step) > step:
                    yield run, attempt, step

    @property
    def _is_superseded(self) -> str:
        again = [
            f"(_run = {run} and attempt < {attempt} and step > {step})" for run, attempt, step in self._done_again
        ]
        return " or ".join(again) or "false"

    def _rollout_columns(self) -> dict[str, Column]:
        """Return the columns of a rollout: those of the files, and one for each reward function with values."""
        kinds = self._tables.kinds("from empty")
        columns = [Column(name, kinds[name]) for name in SCHEMA.names]
        taken = {column.name.casefold() for column in columns}
        rewards = []
        for name in self._reward_names():
            column = REWARD_PREFIX + name
            spelled = _free_name(column.replace("\0", "\u2400"), taken)
            taken.add(spelled.casefold())
            rewards.append(Column(column, "DOUBLE", spelled=spelled))
        at = [column.name for column in columns].index("prompt_tokens")
        return {column.name: column for column in (*columns[:at], *rewards, *columns[at:])}

    def _reward_names(self) -> list[str]:
        """Return the names of reward functions in the run files, then those that only rollouts have."""
        recorded = [name for source in self._tables.sources for name in source.reward_names]
        used = sorted(name for (name,) in self._connection.sql("select distinct name from rewards").fetchall())
        names = dict.fromkeys(name for name in (*recorded, *used) if isinstance(name, str) and is_valid_unicode(name))
        return list(names)[:MOST_REWARDS]

    def _add_views(self, *, with_content: bool) -> str:
        """Create the views of rollouts with or without content, when they are first needed."""
        kind = "whole_" if with_content else ""
        if kind not in self._created:
            with self._querying():
                self._tables.add_whole() if with_content else self._tables.add_light()
                self._create_rollout_views(kind, "all_files" if with_content else "light_files")
                self._add_annotated_views(kind)
                self._created.add(kind)
        return kind

    def _create_rollout_views(self, kind: str, files: str) -> None:
        """Create the views of all rollouts in these files, and of those that are not superseded."""
        columns = [
            _reward_sql(column) if name.startswith(REWARD_PREFIX) else column.sql
            for name, column in self.stored.items()
            if kind or name not in HEAVY
        ]
        self._tables.view(f"{kind}every_rollouts", f"select {', '.join(columns)}, _run, _file, _row from {files}")
        self._tables.view(f"{kind}current_rollouts", f"from {kind}every_rollouts where not ({self._is_superseded})")

    def _create_annotation_views(self, sources: Sequence[Source]) -> dict[str, Producer]:
        """Create a table for each producer whose name is not taken."""
        self._connection.execute("create schema annotations")
        annotated: dict[str, Producer] = {}
        for producer in annotate.find_producers([(source.folder, source.damaged) for source in sources]):
            if producer.name.casefold() not in {name.casefold() for name in (*self.stored, *annotated)}:
                annotations_view = _annotations_view(len(annotated))
                self._tables.view(annotations_view, annotate.select(producer, partial(sql.parquet, uneven=True)))
                view = f"annotations.{name_of(producer.name)}"
                self._connection.execute(f"create view {view} as select id, unnest(v) from {annotations_view}")
                annotated[producer.name] = producer
        return annotated

    def _add_annotated_views(self, kind: str) -> None:
        if not self.annotated:
            return
        columns, joins = _annotation_joins(self.annotated.values())
        for name in (f"{kind}every_rollouts", f"{kind}current_rollouts"):
            self._tables.view(f"annotated_{name}", f"select r.*{columns} from {name} r{joins}")

    def _with_annotations(self, places: pa.Table) -> pa.Table:
        self._tables.table("found_", places.append_column("_at", integers(range(places.num_rows))))
        columns, joins = _annotation_joins(self.annotated.values())
        query = f"select _file, _row, r.id{columns} from found_ r{joins} order by _at"
        return self._connection.sql(query).to_arrow_table()

    def _point_views(self, superseded: bool, *, annotated: bool) -> None:
        """Point the views that people query at the internal views."""
        self._add_views(with_content=True)
        view = _view_name(superseded, annotated=annotated and bool(self.annotated), with_content=True)
        if view != self._rollouts_view:
            self._tables.view("rollouts", f"select * exclude (_run, _file, _row) from {view}")
            base = _view_name(superseded, annotated=False, with_content=True)
            self._tables.view("messages", sql.messages(base))
            self._tables.view("tool_calls", sql.tool_calls(base))
            self._rollouts_view = view

    @property
    def _names_of_tables(self) -> list[str]:
        return [*_PUBLIC_VIEWS, *(f"annotations.{name_of(name)}" for name in self.annotated)]

    def _mentions(self, text: str) -> bool:
        lowered = text.casefold()
        return any(producer.casefold() in lowered for producer in self.annotated)

    def _error(self, error: Exception, what: str) -> Exception:
        """Return a RunError for a mistake of the caller, and an UnreadableError for a problem with the files."""
        text = _duckdb_message(error)
        if isinstance(error, _FILE_ERRORS) or "magic bytes" in text:  # at the end of a Parquet file
            return UnreadableError(text)
        if missing := _MISSING.search(text):
            columns = {**self.columns, **dict.fromkeys((self._log_columns or {}).values())}
            return RunError(unknown_column(missing["column"] or missing["key"], columns))
        if isinstance(error, duckdb.PermissionException):
            return RunError(f"{what} reaches outside the run; it may read {TABLES}")
        if table := re.search(r"[Tt]able with name (\S+)", text):
            return RunError(f"no table is named {table[1]!r}; there are {', '.join(self._names_of_tables)}")
        if isinstance(error, duckdb.ProgrammingError | duckdb.DataError):
            accepted = (
                "write one SELECT" if what == "the SQL" else "write a condition such as reward < 0 and step > 10"
            )
            return RunError(f"{what} is not understood: {text}; {accepted}, in DuckDB's SQL")
        return UnreadableError(text)


def _view_name(superseded: bool, *, annotated: bool, with_content: bool) -> str:
    kind = f"{'annotated_' if annotated else ''}{'whole_' if with_content else ''}"
    return f"{kind}{'every' if superseded else 'current'}_rollouts"


def _sums_view(superseded: bool) -> str:
    """Return the view of sums in which steps and generations are looked up."""
    return f"{'every' if superseded else 'current'}_generations"


def _time_filters(filters: Filters) -> Filters:
    """Return only those filters that select whole generations."""
    return Filters(split=filters.split, step=filters.step, generations=filters.generations)


def _is_about_content(filters: Filters) -> bool:
    """Return True if a query needs the content columns; queries about numbers and names do not."""
    text = filters.texts.casefold()
    content_filters = (filters.tool, filters.prompt, filters.messages, filters.search or None)
    return any(value is not None for value in content_filters) or any(name in text for name in HEAVY)


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number if it is taken: DuckDB ignores case in names."""
    numbered = (f"{name}_{number}" for number in count(1))
    return next(candidate for candidate in chain([name], numbered) if candidate.casefold() not in taken)


def _distinct_names(names: Iterable[str]) -> list[str]:
    """Return distinct names: `a.score` and `b.score` both become `score`, but a row needs different keys."""
    distinct: dict[str, None] = {}
    for name in names:
        distinct[_free_name(name, {taken.casefold() for taken in distinct})] = None
    return list(distinct)


def _reward_sql(column: Column) -> str:
    """Return SQL for the values of one reward function."""
    name = literal(column.name.removeprefix(REWARD_PREFIX))
    return f"rewards[list_position(list_transform(rewards, lambda r: r.name), {name})].value as {column.sql}"


def _annotations_view(number: int) -> str:
    """Return the name of the view of a producer's annotations, with the columns `_run`, `id` and `v`."""
    return f"said_{number}"


def _annotation_joins(producers: Any) -> tuple[str, str]:
    """Return SQL for the columns and joins that add every producer's annotations to a rollout `r`."""
    columns = joins = ""
    for number, producer in enumerate(producers):
        columns += f", a{number}.v as {name_of(producer.name)}"
        joins += f" left join {_annotations_view(number)} a{number} on a{number}.id = r.id and a{number}._run = r._run"
    return columns, joins


def _refusal(kinds: Sequence[str]) -> str:
    if len(kinds) == 1:
        return f"runs are read-only, and the SQL is {kinds[0]}; write one SELECT over {TABLES}"
    return f"the SQL has {len(kinds) or 'no'} statements; write one SELECT over {TABLES}"


def _duckdb_message(error: Exception) -> str:
    """Return the message of a DuckDB error without its prefix."""
    return re.sub(r"^\w+( \w+)? Error: ", "", first_line(error))
