"""Questions to one run or many."""

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
from rollout_plugins.reading.damage import UnreadableError, gist
from rollout_plugins.reading.filters import Column, Filters, condition, no_column, order_by, rewritten, with_bare_names
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
_PEOPLES = ("rollouts", "messages", "tool_calls", "steps")
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_PRAGMA = re.compile(r"\s*pragma\b", re.IGNORECASE)  # DuckDB 1.5 calls it a SELECT
#: Generations in which the first rollouts with a text are looked for, before twice as many are.
_AT_ONCE = 4
_MISSING = re.compile(
    r'column (named )?"(?P<column>[^"]+)"( not found|\s*$)|key "(?P<key>[^"]+)" in struct', re.MULTILINE
)
_QUESTION = re.compile(r"\b(from|table)\b", re.IGNORECASE)
#: Reward functions that get a column; names that differ from rollout to rollout would never end.
MOST_REWARDS = 500
#: The same for names in the trainer's log.
MOST_LOGGED = 1000
_ALL = Filters()
_OF_GENERATIONS = {"split", "step", "attempt", "generation"}
_OURS = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException)


class Database:
    """Views over runs: `rollouts`, `messages`, `tool_calls`, and a table for each producer of annotations.

    Beside them, for questions of our own: `every_rollouts` and `current_rollouts`, those that no later attempt did
    again; with `whole_` in front also with what was said, and with `annotated_` with what producers said of them. Of
    their sums `every_generations`, `current_generations` and so on.
    """

    def __init__(self, sources: Sequence[Source], files: Sequence[Path], *, uneven: bool = False) -> None:
        """`files`: what `_file` counts."""
        self._lock = threading.RLock()
        self._shown = ""
        self._made: set[str] = set()
        self._log_columns: dict[str, str] | None = None
        with self._asking():
            self._tables = Tables(sources, files, uneven=uneven)
            self._connection = self._tables.connection
            self._done_again: list[tuple[int, int, int]] = []
            self._sums()
            if again := list(self._found_again()):
                self._done_again = again
                self._sums()
            self.stored = self._stored()
            self.annotated = self._annotated_views(sources)
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
            query = f"select min(generation), max(generation) from {_sums_of(filters.superseded)}"
            ((start, last),) = self.rows(query)
            tables = [self._places(replace(filters, limit=0), whole=whole)]
            width = 2**32 if self._tables.has_many_files else _AT_ONCE  # each look opens every file
            while start is not None and start <= last and limit > 0:
                some = replace(filters, limit=limit, generations=(start, start + width - 1))
                tables.append(self._places(some, whole=whole))
                start, width, limit = start + width, 2 * width, limit - tables[-1].num_rows
        return pa.concat_tables(tables)

    def total(self, filters: Filters) -> int:
        """How many rollouts there are of these."""
        order_by(filters.order, self.columns)  # raises when it names what is not there
        if replace(filters, order=None) == replace(when := _when(filters), superseded=filters.superseded):
            return self.count(when, superseded=filters.superseded)
        if filters.limit is not None:
            return int(self.places(filters).num_rows)
        return int(self._places(filters, whole=False, counted=True)["n"][0].as_py())

    def _places(self, filters: Filters, *, whole: bool, counted: bool = False) -> pa.Table:
        annotated = self._mentions(filters.texts)
        is_about_content = _is_about_content(filters)
        view = _view(filters.superseded, annotated=annotated, whole=is_about_content)
        holds_question = _QUESTION.search(filters.where or "") is not None
        self._add(whole=is_about_content)
        with self._asking(f"where={filters.where!r}"):
            if holds_question:
                self._show(filters.superseded, annotated=annotated)
            if counted:
                return self._naming(
                    lambda columns: self._asked(filters, view, columns).aggregate("count(*) as n").to_arrow_table()
                )
            if whole and self.annotated:
                return self._with_annotations(self._found(filters, view, "_file, _row, id, _run"))
            return self._found(filters, view, "_file, _row, id" if whole else "_file, _row")

    def _naming(self, ask: Callable[[Mapping[str, Column]], pa.Table]) -> pa.Table:
        """Ask; and again with the column of a reward function for each bare name that DuckDB does not know."""
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

    def _asked(self, filters: Filters, view: str, columns: Mapping[str, Column]) -> Any:
        """Those that were asked for, in no order. SQL of the caller's stays the expression that it is."""
        relation = self._connection.sql(f"select * from {view} where {self._condition(filters)}")
        if filters.where is None:
            return relation
        return relation.filter(rewritten(filters.where, columns, without_nan=True))

    def _found(self, filters: Filters, view: str, names: str) -> pa.Table:
        """Where they are, in order."""
        return self._naming(lambda columns: self._found_by(filters, view, names, columns))

    def _found_by(self, filters: Filters, view: str, names: str, columns: Mapping[str, Column]) -> pa.Table:
        """The same; in one question where that is possible."""
        order = order_by(filters.order, columns)
        most = None if filters.most is None else max(filters.most, 0)
        if filters.where is not None or filters.order:
            relation = self._asked(filters, view, columns).order(order)
            relation = (relation if most is None else relation.limit(most)).project(names)
        else:
            where, limit = self._condition(filters), "" if most is None else f" limit {most}"
            relation = self._connection.sql(f"select {names} from {view} where {where} order by {order}{limit}")
        return relation.to_arrow_table()

    def _condition(self, filters: Filters) -> str:
        """SQL for everything but `where`. DuckDB opens no file that is known to have none, for it names the others."""
        of = _sums_of(filters.superseded)
        whole = condition(filters, of)
        when = _when(filters)
        if when == _ALL:
            return whole
        query = f"select distinct generation from {of} where {condition(when, of)} order by generation"
        found = [generation for (generation,) in self._connection.sql(query).fetchall()]
        if None in found:
            return whole
        files = self._tables.files_with(found)
        return whole if files is None else f"_file in ({', '.join(map(str, files)) or 'null'}) and {whole}"

    def sql(self, query: str, *, superseded: bool = False) -> pa.Table:
        """One SELECT over the views."""
        if _SHOW_TABLES.fullmatch(query):
            return pa.table({"name": self._names_of_tables})
        with self._asking("the SQL"):
            found = self._connection.extract_statements(rewritten(query, self.columns))
            kinds = [str(statement.type).rpartition(".")[2] for statement in found]
            if kinds != ["SELECT"] or _PRAGMA.match(query):
                raise RunError(_refused(kinds))
            if "steps" in query.casefold():
                self._show_steps(superseded)
            counted = re.sub(r"count\s*\(\s*\*\s*\)", "", query, flags=re.IGNORECASE)
            self._show(superseded, annotated="*" in counted or self._mentions(query))
            table = self._naming(lambda columns: self._connection.sql(rewritten(query, columns)).to_arrow_table())
            names = {column.spelled: name for name, column in self.stored.items() if column.spelled}
            return table.rename_columns(_distinct(names.get(name, name) for name in table.column_names))

    def read(self, files: Sequence[Path]) -> pa.Table:
        """All rows of these files, one file after the other, with the `filename` of each."""
        with self._asking():
            query = f"select {listed(SCHEMA.names)}, filename from {sql.parquet(files)}"
            found = self._connection.sql(query).to_arrow_table()
            return found.select(SCHEMA.names).cast(SCHEMA).append_column("filename", found["filename"])

    def values(self, name: str) -> list[Any]:
        """The different values of a column, in order; without NaN, which is not a value to choose."""
        columns = with_bare_names(self.columns, [name])
        if (column := columns.get(name)) is None:
            raise RunError(no_column(name, self.columns))
        if name in _OF_GENERATIONS:
            view = _sums_of(superseded=True)
        else:
            whole = name in HEAVY
            self._add(whole=whole)
            view = _view(superseded=True, annotated=bool(column.producer), whole=whole)
        is_value = f"not isnan({column.sql})" if column.may_be_nan else "true"
        query = f"select distinct {column.sql} as v from {view} where v is not null and {is_value} order by v"
        with self._asking(f"the column {name!r}"):
            return [row[0] for row in self._connection.sql(query).fetchall()]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of our own gives, over sums, or over rollouts without what was said in them."""
        if "_rollouts" in query:
            self._add(whole=False)
        with self._asking():
            return list(self._connection.sql(query).fetchall())

    def count(self, when: Filters = _ALL, *, superseded: bool) -> int:
        """How many rollouts there are, or were made then: the sums say it."""
        of = _sums_of(superseded)
        query = f"select coalesce(sum(rollouts), 0) from {of} where {condition(when, of)}"
        with self._asking(f"where={when.where!r}"):
            return int(self._connection.sql(query).fetchall()[0][0])

    def count_by_file(self) -> dict[Path, Counter[tuple[int, int, str]]]:
        """How many rollouts each file has of each attempt, rank and split that its rows name."""
        counts: dict[Path, Counter[tuple[int, int, str]]] = {}
        query = "select _file, attempt, rank, split, count(*) from every_rollouts group by all"
        for number, attempt, rank, split, rollouts in self.rows(query):
            counts.setdefault(self._tables.files[number], Counter())[attempt, rank, split] += rollouts
        return counts

    def stats(self, *, width: int = 1) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The run's figures: their names, and a row for each step, or for so many neighbouring ones."""
        functions = [name.removeprefix(REWARD_PREFIX) for name in self.stored if name.startswith(REWARD_PREFIX)]
        names, query = summary.query(functions, width=width)
        with self._asking():
            if self._connection.sql(summary.mingled("every")).fetchall()[0][0]:
                self._tables.add_sums(whole=False)
                self._sums()
            return names, self._connection.sql(query).fetchall()

    def log_columns(self) -> dict[str, str]:
        """The names that the trainer logged, in the order of their first time, and the column of each in `steps`."""
        with self._asking():
            if self._log_columns is None:
                logs = [step_log.read_log(source.folder, source.damaged) for source in self._tables.sources]
                self._tables.table("logged", step_log.numbered(logs))
                query = "select name from logged where value is not null group by name order by min(_row)"
                names = [name for (name,) in self._connection.sql(query).fetchall()]
                self._log_columns = step_log.columns_of(names[:MOST_LOGGED])
                self._tables.view("current_logged", step_log.current(self._is_again))
                self._tables.view("current_steps", step_log.steps(self._log_columns, "current_logged"))
            return self._log_columns

    def logged(self, *, width: int = 1) -> dict[int, dict[str, float]]:
        """What the trainer logged, by the step that stands for so many neighbouring ones, as in `stats`: the means."""
        columns = self.log_columns()
        if not columns:
            return {}
        first = "coalesce((select min(step) from current_generations), 0)"
        point = f"step - (step - {first}) % {width}"
        means = ", ".join(f"avg({name_of(column)})" for column in columns.values())
        rows = self.rows(f"select {point} as point, {means} from current_steps group by point")
        names = [step_log.PREFIX + name for name in columns]
        return {point: dict(zip(names, values, strict=True)) for point, *values in rows}

    def _show_steps(self, superseded: bool) -> None:
        """Point `steps` at what counts, or at everything."""
        columns = self.log_columns()
        self._tables.view("steps", step_log.steps(columns, "logged") if superseded else "from current_steps")

    def done_again(self) -> list[tuple[int, int]]:
        """(attempt, step) of the attempts that did steps again, after the one they were resumed from."""
        return [(attempt, step) for _, attempt, step in self._done_again]

    @contextmanager
    def _asking(self, what: str = "") -> Iterator[None]:
        """One question at a time. `what` the caller wrote may be why DuckDB objects; else the files are."""
        with self._lock:
            try:
                yield
            except duckdb.Error as error:
                raise (self._error(error, what) if what else UnreadableError(_gist(error))) from error

    def _sums(self) -> None:
        """Views of the sums, as of the rollouts."""
        for name in ("generations", "groups", "rewards"):
            self._tables.view(f"every_{name}", f"from {name}")
            self._tables.view(f"current_{name}", f"from {name} where not ({self._is_again})")

    def _found_again(self) -> Iterator[tuple[int, int, int]]:
        """(run, attempt, step) of what is done again."""
        query = "select _run, attempt, max(step) from generations group by all"
        last = {(run, attempt): step for run, attempt, step in self._connection.sql(query).fetchall()}
        for run, source in enumerate(self._tables.sources):
            for attempt, step in source.restarts:
                if (last.get((run, attempt)) or step) > step:
                    yield run, attempt, step

    @property
    def _is_again(self) -> str:
        again = [
            f"(_run = {run} and attempt < {attempt} and step > {step})" for run, attempt, step in self._done_again
        ]
        return " or ".join(again) or "false"

    def _stored(self) -> dict[str, Column]:
        """The columns of a rollout: those of the files, and one for each reward function that gave something."""
        kinds = self._tables.kinds("from empty")
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
        told = [name for source in self._tables.sources for name in source.reward_names]
        found = sorted(name for (name,) in self._connection.sql("select distinct name from rewards").fetchall())
        names = dict.fromkeys(name for name in (*told, *found) if isinstance(name, str) and is_valid_unicode(name))
        return list(names)[:MOST_REWARDS]

    def _add(self, *, whole: bool) -> str:
        """Views of rollouts, whole or without what was said in them. The first time, each takes a moment."""
        kind = "whole_" if whole else ""
        if kind not in self._made:
            with self._asking():
                self._tables.add_whole() if whole else self._tables.add_light()
                self._rollouts(kind, "all_files" if whole else "light_files")
                self._add_annotated(kind)
                self._made.add(kind)
        return kind

    def _rollouts(self, kind: str, files: str) -> None:
        """Views of the rollouts in these files: all of them, and those that no later attempt did again."""
        columns = [
            _reward(column) if name.startswith(REWARD_PREFIX) else column.sql
            for name, column in self.stored.items()
            if kind or name not in HEAVY
        ]
        self._tables.view(f"{kind}every_rollouts", f"select {', '.join(columns)}, _run, _file, _row from {files}")
        self._tables.view(f"{kind}current_rollouts", f"from {kind}every_rollouts where not ({self._is_again})")

    def _annotated_views(self, sources: Sequence[Source]) -> dict[str, Producer]:
        """A table for each producer; names that are taken are left out."""
        self._connection.execute("create schema annotations")
        annotated: dict[str, Producer] = {}
        for producer in annotate.find_producers([(source.folder, source.damaged) for source in sources]):
            if producer.name.casefold() not in {name.casefold() for name in (*self.stored, *annotated)}:
                said = _said(len(annotated))
                self._tables.view(said, annotate.select(producer, partial(sql.parquet, uneven=True)))
                view = f"annotations.{name_of(producer.name)}"
                self._connection.execute(f"create view {view} as select id, unnest(v) from {said}")
                annotated[producer.name] = producer
        return annotated

    def _add_annotated(self, kind: str) -> None:
        if not self.annotated:
            return
        columns, joins = _joined(self.annotated.values())
        for name in (f"{kind}every_rollouts", f"{kind}current_rollouts"):
            self._tables.view(f"annotated_{name}", f"select r.*{columns} from {name} r{joins}")

    def _with_annotations(self, found: pa.Table) -> pa.Table:
        self._tables.table("found_", found.append_column("_at", integers(range(found.num_rows))))
        columns, joins = _joined(self.annotated.values())
        query = f"select _file, _row, r.id{columns} from found_ r{joins} order by _at"
        return self._connection.sql(query).to_arrow_table()

    def _show(self, superseded: bool, *, annotated: bool) -> None:
        """Point the names people use at the views they asked for."""
        self._add(whole=True)
        wanted = _view(superseded, annotated=annotated and bool(self.annotated), whole=True)
        if wanted != self._shown:
            self._tables.view("rollouts", f"select * exclude (_run, _file, _row) from {wanted}")
            base = _view(superseded, annotated=False, whole=True)
            self._tables.view("messages", sql.messages(base))
            self._tables.view("tool_calls", sql.tool_calls(base))
            self._shown = wanted

    @property
    def _names_of_tables(self) -> list[str]:
        return [*_PEOPLES, *(f"annotations.{name_of(name)}" for name in self.annotated)]

    def _mentions(self, text: str) -> bool:
        lowered = text.casefold()
        return any(producer.casefold() in lowered for producer in self.annotated)

    def _error(self, error: Exception, what: str) -> Exception:
        """One sentence for a mistake of the caller; everything else is about the files."""
        text = _gist(error)
        if isinstance(error, _OURS) or "magic bytes" in text:  # the end of a Parquet file
            return UnreadableError(text)
        if missing := _MISSING.search(text):
            columns = {**self.columns, **dict.fromkeys((self._log_columns or {}).values())}
            return RunError(no_column(missing["column"] or missing["key"], columns))
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


def _view(superseded: bool, *, annotated: bool, whole: bool) -> str:
    kind = f"{'annotated_' if annotated else ''}{'whole_' if whole else ''}"
    return f"{kind}{'every' if superseded else 'current'}_rollouts"


def _sums_of(superseded: bool) -> str:
    """Where to look up which steps and generations there are."""
    return f"{'every' if superseded else 'current'}_generations"


def _when(filters: Filters) -> Filters:
    """What of the filters is about whole generations."""
    return Filters(split=filters.split, step=filters.step, generations=filters.generations)


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
    """The view of what a producer said: run, id, and all columns as one value `v`."""
    return f"said_{number}"


def _joined(producers: Any) -> tuple[str, str]:
    """SQL for the columns and the joins that put every producer's values beside a rollout `r`."""
    columns = joins = ""
    for number, producer in enumerate(producers):
        columns += f", a{number}.v as {name_of(producer.name)}"
        joins += f" left join {_said(number)} a{number} on a{number}.id = r.id and a{number}._run = r._run"
    return columns, joins


def _refused(kinds: Sequence[str]) -> str:
    if len(kinds) == 1:
        return f"runs are read-only, and the SQL is {kinds[0]}; write one SELECT over {TABLES}"
    return f"the SQL has {len(kinds) or 'no'} statements; write one SELECT over {TABLES}"


def _gist(error: Exception) -> str:
    """The gist of an error message of DuckDB's."""
    return re.sub(r"^\w+( \w+)? Error: ", "", gist(error))
