"""Translate the keyword arguments that select and sort rollouts into SQL."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypedDict

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.errors import RunError, suggest
from rollout_plugins.reading import text_search
from rollout_plugins.reading.prompt_history import is_plain_text
from rollout_plugins.reading.sql_pieces import literal, name_of
from rollout_plugins.store.schema import REWARD_PREFIX

PRUNED = """coalesce(marks, '') like '%"pruned":%'"""
"""A SQL condition that is true of rollouts whose text was removed."""
ORDER = ("generation", "attempt", "split", "index", "rank")
_NAMES = ("split", "finish", "id")
_FLOATS = {"DOUBLE", "FLOAT"}
_ASKS_FOR_NAN = re.compile(r"(?i)(\bis(nan|finite|inf)\s*\(\s*|\.)$")
_ASKS_FOR_NULL = re.compile(r"(?i)\s+is\s+(not\s+)?null\b")
_QUOTED = r'"(?:[^"]|"")*"'
_LITERALS = rf"(?P<kept>'(?:[^']|'')*'|(?i:\bas\s+)(?:{_QUOTED}|\w+)|(?i:\bwithin\s+group\b|\bgroup\s+by\b))"
_GROUP = r"\bgroup\b"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a run, or of a producer's annotations."""

    name: str
    kind: str
    producer: str = ""
    spelled: str = ""
    """The column's name in SQL if it differs from `name`, because SQL ignores case in names."""

    @property
    def may_be_nan(self) -> bool:
        """Whether the column can hold NaN. `time` cannot, and `time` is also the name of an SQL type."""
        return self.kind in _FLOATS and self.name != "time"

    @property
    def sql(self) -> str:
        own = name_of(self.spelled or self.name)
        return f"{name_of(self.producer)}.{own}" if self.producer else own


#: The filters that must be text, with a description of each for error messages.
_TEXTS = {
    "split": "the name of a split, such as 'train'",
    "finish": "a reason to end, such as 'length'",
    "tool": "the name of a tool",
    "where": "a condition such as 'reward < 0'",
    "search": "text to look for, such as 'error'",
    "order": "a column such as '-reward', or a list of columns",
}


class RolloutFilters(TypedDict, total=False):
    """The filters that `StoredRun.rollouts` and the methods like it accept as keyword arguments."""

    split: str | None
    """The split, such as `train`."""
    step: int | str | range | Collection[int] | None
    """A step, -1 or `"last"`, a range (`range(10, 20)`, `"10-20"`), or several steps."""
    group: int | None
    """The number of the group."""
    rank: int | None
    """The rank that recorded the rollout."""
    finish: str | None
    """Why generation ended, such as `length`."""
    tool: str | None
    """The name of a tool that the rollout called."""
    has_error: bool | None
    """Whether the rollout, or one of its tool calls, failed."""
    where: str | None
    """A SQL condition over the columns and annotations, such as `judge.score > 0.5`."""
    search: str | None
    """Text, in any case, in anything that is stored of a rollout except numbers, also as a viewer prints it."""
    order: str | Sequence[str] | None
    """The column or columns to sort by; `-reward` is descending."""
    limit: int | None
    """The largest number of rollouts to return."""
    superseded: bool
    """Whether to include rollouts of steps that a resumed training repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Checked filters: those of `RolloutFilters`, and some that only this package uses."""

    split: str | None = None
    step: int | str | range | Collection[int] | None = None
    group: int | None = None
    rank: int | None = None
    finish: str | None = None
    tool: str | None = None
    has_error: bool | None = None
    where: str | None = None
    search: str | None = None
    order: str | Sequence[str] | None = None
    limit: int | None = None
    superseded: bool = False
    id: str | None = None
    prompt: str | None = None
    """The text of one of the prompt's messages."""
    messages: Sequence[Any] | None = None
    """All messages of the prompt. Of a message with more than a role and a text, only the text is compared."""
    generations: tuple[int, int] | None = None
    """The first and the last generation to search."""

    @classmethod
    def of(cls, **filters: Any) -> Filters:
        """Return checked filters, or raise an error that suggests a name for an unknown one."""
        for name in filters:
            if name not in cls.__dataclass_fields__:
                raise RunError(f"there is no filter {name!r}; {suggest(name, _PUBLIC)}")
        return cls(**filters)

    def __post_init__(self) -> None:
        for name, description in _TEXTS.items():
            value = getattr(self, name)
            is_list = name == "order" and isinstance(value, (list, tuple))
            if not all(isinstance(text, str) for text in (value if is_list else [value]) if value is not None):
                raise RunError(f"{name}={value!r} is not {description}")
        if self.has_error not in {None, True, False}:
            raise RunError(f"has_error={self.has_error!r} is not True or False")

    @property
    def most(self) -> int | None:
        """The limit as an integer."""
        if self.limit is None:
            return None
        number = _as_int(self.limit)
        if number is None or number < 0:
            raise RunError(f"limit={self.limit!r} is not a number of rollouts; give a whole number, 0 or more")
        return number

    @property
    def texts(self) -> str:
        """The SQL that the caller wrote, which may mention columns."""
        order = self.order if isinstance(self.order, str) else " ".join(self.order or ())
        return f"{self.where or ''} {order}"


_PUBLIC = list(RolloutFilters.__annotations__)


def condition(filters: Filters, table: str) -> str:
    """Return SQL for all filters except `where`; `table` is where the last step is looked up."""
    simple = [
        f"{name_of(name)} = {literal(value if name in _NAMES else _require_int(name, value))}"
        for name in (*_NAMES, "group", "rank")
        if (value := getattr(filters, name)) is not None
    ]
    if filters.generations is not None:
        simple.append("generation between {} and {}".format(*filters.generations))
    if filters.messages is not None:
        simple.append(f"len(prompt) = {len(filters.messages)}")
        simple += chain.from_iterable(
            _message_conditions(f"prompt[{n}]", m) for n, m in enumerate(filters.messages, 1)
        )
    if filters.step is not None:
        simple.append(_step_condition(filters.step, filters.split, table))
    others = [_any_element(alternatives) for alternatives in _element_conditions(filters)]
    if filters.search:
        others.append(text_search.condition(filters.search))
    if filters.has_error is not None:
        has_failed = "(error is not null or finish = 'error' or coalesce(failed_calls, 0) > 0)"
        others.append(has_failed if filters.has_error else f"not {has_failed}")
    return " and ".join([*simple, *others]) or "true"


def _message_conditions(column: str, message: Any) -> Iterator[str]:
    """Yield conditions on a message's text. A message without anything else has to be equal."""
    text = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(text, str):
        yield f"{column}.content = {literal(text)}"
    if is_plain_text(message):
        yield f"{column}.role is not distinct from {literal(message['role'])}"
        yield from (f"{column}.{name} is null" for name in ("name", "reasoning", "rest"))
        yield f"coalesce(len({column}.tool_calls), 0) = 0"


def _element_conditions(filters: Filters) -> list[list[tuple[str, str]]]:
    """Return conditions on nested columns, each as alternatives of (column, condition on its element `x`)."""
    conditions = []
    if filters.tool is not None:
        conditions.append([("tool_calls", f"x.name = {literal(filters.tool)}")])
    if filters.prompt is not None:
        conditions.append([("prompt", f"x.content = {literal(filters.prompt)}")])
    return conditions


def _any_element(alternatives: list[tuple[str, str]]) -> str:
    """Return SQL that is true if an element of one of the columns fulfils its condition.

    The lists are searched within the row, because a join over ids would be slower.
    """
    return " or ".join(
        f"len(list_filter({column}, lambda x: {element})) > 0" for column, element in alternatives
    ).join("()")


def _step_condition(step: Any, split: str | None, table: str) -> str:
    if isinstance(step, str):
        return _written_steps(step, split, table)
    if isinstance(step, range) and step.step == 1:
        return f"(step >= {step.start} and step < {step.stop})"
    numbers = []
    for value in step if isinstance(step, Collection) else (step,):
        number = _as_int(value)
        if number is None:
            raise _not_a_step(value)
        numbers.append(_step_from_end(-number, split, table) if number < 0 else str(number))
    return f"step in ({', '.join(numbers)})" if numbers else "false"


def _step_from_end(place: int, split: str | None, table: str) -> str:
    """Return SQL for the step at `place` from the end of `split`, or of the training split if `split` is None."""
    trained = f"coalesce((select any_value(split) from {table} where split = 'train'), split)"
    steps = f"select distinct step from {table} where split = {literal(split) if split else trained}"
    return f"({steps} order by step desc nulls last limit 1 offset {place - 1})"


def _written_steps(text: str, split: str | None, table: str) -> str:
    """Return SQL for steps as text.

    A text is `last`, `12`, `-2` (from the end), `10-20`, `10-`, `..20`, or several of these with commas.
    """
    pieces = text.lower().replace("last", "-1").split(",")
    return f"({' or '.join(_written_step(piece, text, split, table) for piece in pieces)})"


def _written_step(piece: str, text: str, split: str | None, table: str) -> str:
    match = re.fullmatch(r"(?a)\s*(\d*)\s*(-|\.\.|:)?\s*(\d*)\s*", piece)
    low, dash, high = match.groups() if match else ("", "", "")
    if not low and dash == "-" and high.strip("0"):
        return f"step = {_step_from_end(int(high), split, table)}"
    if not (low or high) or (dash == "-" and not low):
        raise _not_a_step(text)
    if low and high and int(low) > int(high):
        raise RunError(f"step={text!r} ends before it begins; write {high}{dash}{low}")
    bounds = [f"step >= {low}"] * bool(low) + [f"step <= {high}"] * bool(high)
    return " and ".join(bounds) if dash else f"step = {low}"


def _not_a_step(value: Any) -> RunError:
    return RunError(
        f"step={value!r} is not a step; give a number, 'last', -2, a range such as '10-20', or a Python range"
    )


def _require_int(name: str, value: Any) -> int:
    number = _as_int(value)
    if number is None:
        raise RunError(f"{name}={value!r} is not a whole number")
    return number


def _as_int(value: Any) -> int | None:
    """Return a whole number of any type, or in text, as an int; None for anything else."""
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)
        if not isinstance(value, bool) and (isinstance(value, str) or number == value):
            return number
    return None


def order_by(order: str | Sequence[str] | None, columns: Mapping[str, Column]) -> str:
    """Return SQL that sorts by columns (`-reward`, `step,-reward`, or a list) or by an SQL expression.

    Missing values and NaN come last, ascending and descending.
    """
    text = order if isinstance(order, str) else ",".join(order or ())
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    names = [piece.removeprefix("-").strip() for piece in pieces]
    columns = with_bare_names(columns, names)
    unknown = [name for name in names if name not in columns]
    if unknown and all(re.fullmatch(r"-?[\w./-]+", piece) for piece in pieces):
        raise RunError(unknown_column(unknown[0], columns))
    if unknown:
        return rewrite_sql(text, columns)
    terms = [_order_term(columns[name], down=piece[0] == "-") for name, piece in zip(names, pieces, strict=True)]
    return ", ".join([*terms, *map(name_of, ORDER)])


def _order_term(column: Column, *, down: bool) -> str:
    direction = f"{column.sql} {'desc' if down else 'asc'} nulls last"
    return f"{column.sql} is null, isnan({column.sql}), {direction}" if column.kind in _FLOATS else direction


def with_bare_names(columns: Mapping[str, Column], names: Iterable[str]) -> Mapping[str, Column]:
    """Return the columns, also by those of `names` that are the bare name of exactly one reward function."""
    by_bare_name = {
        name: column for name in names if name not in columns and (column := _reward_column(name, columns))
    }
    return {**columns, **by_bare_name} if by_bare_name else columns


def _reward_column(name: str, columns: Mapping[str, Column]) -> Column | None:
    """Return the column of a reward function; if several names differ only in case, only the exact one matches."""
    if exact := columns.get(REWARD_PREFIX + name):
        return exact
    similar = [column for column in columns if column.casefold() == (REWARD_PREFIX + name).casefold()]
    return columns[similar[0]] if len(similar) == 1 else None


def rewrite_sql(text: str, columns: Mapping[str, Column], *, without_nan: bool = False) -> str:
    """Return the caller's SQL with `group`, `reward/<name>` and `<producer>.<column>` quoted for DuckDB.

    With `without_nan`, comparisons with NaN are false; DuckDB sorts NaN above all numbers. `isnan(x)` still works.
    """
    odd = [name for name, column in columns.items() if not name.isidentifier() or column.sql != name_of(name)]
    plain = [name for name, column in columns.items() if without_nan and column.may_be_nan and name.isidentifier()]
    names = sorted({*odd, *plain}, key=len, reverse=True)
    bare = [rf"(?<![\w/]){'(?i:' if name in plain else '(?:'}{re.escape(name)})(?![\w/])" for name in names]
    cleaned_text = replace_surrogates(text)

    def spelled(match: re.Match[str]) -> str:
        found = match[0]
        name = found[1:-1].replace('""', '"') if found[0] == '"' else found
        column = columns.get(name) or columns.get(name.casefold())
        if match["kept"] or column is None:
            return found
        around = cleaned_text[: match.start()], cleaned_text[match.end() :]
        is_compared = not (_ASKS_FOR_NAN.search(around[0]) or _ASKS_FOR_NULL.match(around[1]))
        if without_nan and column.may_be_nan and is_compared:
            return f"nullif({column.sql}, 'nan'::double)"
        return column.sql

    return re.sub("|".join([_LITERALS, _QUOTED, *bare, _GROUP]), spelled, cleaned_text)


def unknown_column(name: str, columns: Collection[str]) -> str:
    """Return an error message for an unknown column, with suggestions."""
    return f"no column is named {name!r}; {suggest(name, columns)}"
