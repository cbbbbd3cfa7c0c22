"""Which rollouts, and in which order: the readers' keyword arguments as SQL."""

# ruff: noqa: S608 - SQL is put together from quoted names and literals
from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rollout_plugins.errors import RunError, suggest
from rollout_plugins.reading.sql import literal, name_of
from rollout_plugins.store.codec import cleaned

PRUNED = """coalesce(marks, '') like '%"pruned":%'"""
"""Is true of rollouts that lost their text."""
ORDER = ("generation", "attempt", "split", "index", "rank")
_NAMES = ("split", "finish", "id")
_FLOATS = {"DOUBLE", "FLOAT"}
_QUOTED = r'"(?:[^"]|"")*"'
_KEPT = rf"(?P<kept>'(?:[^']|'')*'|(?i:\bas\s+){_QUOTED}|(?i:\bwithin\s+group\b|\bgroup\s+by\b))"
_GROUP = r"\bgroup\b"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a run, or of a producer's annotations."""

    name: str
    kind: str
    producer: str = ""
    spelled: str = ""
    """Its name in SQL, where that is another: SQL does not tell apart names that differ only in case."""

    @property
    def sql(self) -> str:
        own = name_of(self.spelled or self.name)
        return f"{name_of(self.producer)}.{own}" if self.producer else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What `StoredRun.rollouts` takes."""

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
    """Text of one of the prompt's messages."""
    messages: Sequence[str | None] | None = None
    """Texts of all the prompt's messages; None for one that is more than text."""
    generations: tuple[int, int] | None = None
    """The first and the last to look at."""

    @property
    def most(self) -> int | None:
        """`limit` as a number."""
        if self.limit is None:
            return None
        number = _whole(self.limit)
        if number is None or number < 0:
            raise RunError(f"limit={self.limit!r} is not a number of rollouts; give a whole number, 0 or more")
        return number

    @property
    def texts(self) -> str:
        """What the caller wrote in SQL, to see which columns it may mention."""
        order = self.order if isinstance(self.order, str) else " ".join(self.order or ())
        return f"{self.where or ''} {order}"


def condition(filters: Filters, table: str) -> str:
    """The SQL condition of everything but `where`; `table` is where the last step is looked up."""
    simple = [
        f"{name_of(name)} = {literal(value if name in _NAMES else _number(name, value))}"
        for name in (*_NAMES, "group", "rank")
        if (value := getattr(filters, name)) is not None
    ]
    if filters.generations is not None:
        simple.append("generation between {} and {}".format(*filters.generations))
    if filters.messages is not None:
        texts = [(place, text) for place, text in enumerate(filters.messages, 1) if text is not None]
        simple.append(f"len(prompt) = {len(filters.messages)}")
        simple += [f"prompt[{place}].content = {literal(text)}" for place, text in texts]
    if filters.step is not None:
        simple.append(_steps(filters.step, filters.split, table))
    found = [_any_of(alternatives) for alternatives in _inside(filters)]
    if filters.has_error is not None:
        wrong = "(error is not null or finish = 'error' or coalesce(failed_calls, 0) > 0)"
        found.append(wrong if filters.has_error else f"not {wrong}")
    return " and ".join([*simple, *found]) or "true"


def _inside(filters: Filters) -> list[list[tuple[str, str]]]:
    """Conditions on elements of nested columns: alternatives of (column, condition on its element `x`)."""
    out = []
    if filters.tool is not None:
        out.append([("tool_calls", f"x.name = {literal(filters.tool)}")])
    if filters.prompt is not None:
        out.append([("prompt", f"x.content = {literal(filters.prompt)}")])
    if filters.search:
        text = filters.search.lower()
        plain, quoted = literal(text), literal(json.dumps(text, ensure_ascii=False)[1:-1])
        said = f"contains(lower(x.content), {plain}) or contains(lower(x.reasoning), {plain})"
        called = f"contains(lower(x.arguments), {quoted}) or contains(lower(x.name), {plain})"
        out.append([("prompt", said), ("completion", said), ("tool_calls", called)])
    return out


def _any_of(alternatives: list[tuple[str, str]]) -> str:
    """An element of one of the columns is like that. Looked for in the row itself, not by a join over ids."""
    return " or ".join(
        f"len(list_filter({column}, lambda x: {element})) > 0" for column, element in alternatives
    ).join("()")


def _steps(step: Any, split: str | None, table: str) -> str:
    if isinstance(step, str):
        return _written_steps(step, split, table)
    if isinstance(step, range) and step.step == 1:
        return f"(step >= {step.start} and step < {step.stop})"
    numbers = []
    for given in step if isinstance(step, Collection) else (step,):
        number = _whole(given)
        if number is None:
            raise _not_a_step(given)
        numbers.append(_from_the_end(-number, split, table) if number < 0 else str(number))
    return f"step in ({', '.join(numbers)})" if numbers else "false"


def _from_the_end(place: int, split: str | None, table: str) -> str:
    """The last step of the split is the first from the end; unless a split is asked for, that of training, if any."""
    trained = f"coalesce((select any_value(split) from {table} where split = 'train'), split)"
    steps = f"select distinct step from {table} where split = {literal(split) if split else trained}"
    return f"({steps} order by step desc nulls last limit 1 offset {place - 1})"


def _written_steps(text: str, split: str | None, table: str) -> str:
    """`last`, `12`, `-2` (from the end), `10-20`, `10-`, `..20`, and several of these with commas."""
    pieces = text.lower().replace("last", "-1").split(",")
    return f"({' or '.join(_written_step(piece, text, split, table) for piece in pieces)})"


def _written_step(piece: str, text: str, split: str | None, table: str) -> str:
    match = re.fullmatch(r"(?a)\s*(\d*)\s*(-|\.\.|:)?\s*(\d*)\s*", piece)
    low, dash, high = match.groups() if match else ("", "", "")
    if not low and dash == "-" and high.strip("0"):
        return f"step = {_from_the_end(int(high), split, table)}"
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


def _number(name: str, value: Any) -> int:
    number = _whole(value)
    if number is None:
        raise RunError(f"{name}={value!r} is not a whole number")
    return number


def _whole(value: Any) -> int | None:
    """A whole number of any kind, or in text; None for everything else."""
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)
        if not isinstance(value, bool) and (isinstance(value, str) or number == value):
            return number
    return None


def order_by(order: str | Sequence[str] | None, columns: Mapping[str, Column]) -> str:
    """`-reward`, `step,-reward`, several names, or SQL. Missing values and NaN come last in either direction."""
    text = order if isinstance(order, str) else ",".join(order or ())
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    names = [piece.removeprefix("-").strip() for piece in pieces]
    unknown = [name for name in names if name not in columns]
    if unknown and all(re.fullmatch(r"-?[\w./-]+", piece) for piece in pieces):
        raise RunError(no_column(unknown[0], columns))
    if unknown:
        return rewritten(text, columns)
    made = [_ordered(columns[name], down=piece[0] == "-") for name, piece in zip(names, pieces, strict=True)]
    return ", ".join([*made, *map(name_of, ORDER)])


def _ordered(column: Column, *, down: bool) -> str:
    direction = f"{column.sql} {'desc' if down else 'asc'} nulls last"
    return f"{column.sql} is null, isnan({column.sql}), {direction}" if column.kind in _FLOATS else direction


def rewritten(text: str, columns: Mapping[str, Column]) -> str:
    """The caller's SQL with `group`, `reward/<name>` and `<producer>.<column>`, quoted or bare, as SQL knows them."""
    odd = sorted((name for name in columns if not name.isidentifier()), key=len, reverse=True)
    bare = [rf"(?<![\w/]){re.escape(name)}(?![\w/])" for name in odd]

    def spelled(match: re.Match[str]) -> str:
        found = match[0]
        column = columns.get(found[1:-1].replace('""', '"') if found[0] == '"' else found)
        return found if match["kept"] or column is None else column.sql

    return re.sub("|".join([_KEPT, _QUOTED, *bare, _GROUP]), spelled, cleaned(text))


def no_column(name: str, columns: Collection[str]) -> str:
    """One sentence that names what there is."""
    return f"no column is named {name!r}; {suggest(name, columns)}"
