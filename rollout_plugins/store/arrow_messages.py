"""Convert messages to the columns in `schema`, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from rollout_hookspecs import Placeholder

from rollout_plugins.content.exact_json import INSPECTION_ERRORS, decode, encode, encode_all, is_valid_unicode
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.messages import calls_of
from rollout_plugins.store.column_values import is_exact, list_of, readable, starts_of
from rollout_plugins.store.schema import CALL, MESSAGE, TYPED


class Messages(NamedTuple):
    """The column of all prompts or of all completions, with values derived from it."""

    column: pa.ListArray
    turns: pa.Array
    """How many messages of each rollout the assistant wrote."""
    arguments: list[str]
    """The arguments of all calls in plain messages, as JSON."""


def messages(talk: MessageColumns, lost: list[Placeholder]) -> Messages:
    """Convert messages to columns. Plain messages are converted by column, all others one at a time."""
    arguments = encode_all(talk.arguments, lost)
    try:
        return _columns(talk, arguments, dict(talk.irregular), lost)
    except UnicodeEncodeError:  # a text has a lone surrogate
        irregular = {at: talk.message(at) for at in range(len(talk.shapes)) if not _is_clean(talk, at)}
        return _columns(talk, arguments, talk.irregular | irregular, lost)


def _is_clean(talk: MessageColumns, at: int) -> bool:
    values = [column[at] for column in talk.columns.values()]
    calls = [part for ident, name, _ in talk.calls(at) for part in (ident, name)]
    return all(value is None or is_valid_unicode(value) for value in (*values, *calls))


def _columns(
    talk: MessageColumns, arguments: list[str], irregular: Mapping[int, Any], lost: list[Placeholder]
) -> Messages:
    columns: dict[str, Any] = {column: list(talk.column(key)) for key, column in TYPED.items()}
    columns["rest"] = _encode_rest(talk)
    calls = {
        at: list(zip(talk.call_ids[call_range], talk.call_names[call_range], arguments[call_range], strict=True))
        for at, call_range in talk.calls_by_message()
    } if irregular else {}  # fmt: skip
    for at, message in irregular.items():
        *texts, calls[at], columns["rest"][at] = _message(message, lost)
        for column, text in zip(TYPED.values(), texts, strict=True):
            columns[column][at] = text
    turns = [columns["role"][start:end].count("assistant") for start, end in pairwise(talk.starts)]
    columns["tool_calls"] = _merge_calls(calls, len(talk.shapes)) if irregular else _calls(talk, arguments)
    return Messages(list_of(MESSAGE, talk.starts, columns), pa.array(turns, pa.int64()), arguments)


def _calls(talk: MessageColumns, arguments: list[str]) -> pa.ListArray:
    counts = [0] * len(talk.shapes)
    for at, call_range in talk.calls_by_message():
        counts[at] = call_range.stop - call_range.start
    columns = {"id": talk.call_ids, "name": talk.call_names, "arguments": arguments}
    return list_of(CALL, starts_of(counts), columns)


def _merge_calls(calls: Mapping[int, _Calls], count: int) -> pa.ListArray:
    """Return the calls of all messages, plain or not."""
    in_order = [calls.get(at, ()) for at in range(count)]
    flat = [call for some in in_order for call in some]
    columns = {key: [call[at] for call in flat] for at, key in enumerate(("id", "name", "arguments"))}
    return list_of(CALL, starts_of(map(len, in_order)), columns)


def _encode_rest(talk: MessageColumns) -> list[str | None]:
    """Return as JSON what has no column of its own in each plain message: other keys, and keys whose value is None."""
    if _is_all_typed(talk):
        return [None] * len(talk.shapes)
    asking = set(talk.calling)
    rest: list[str | None] = []
    for at, shape in enumerate(talk.shapes):
        values = {key: talk.columns[key][at] for key in shape if key != "tool_calls"}
        remaining = {key: value for key, value in values.items() if value is None or key not in TYPED}
        if "tool_calls" in shape and at not in asking:
            remaining["tool_calls"] = None
        rest.append(encode(remaining) if remaining else None)
    return rest


def _is_all_typed(talk: MessageColumns) -> bool:
    shapes = Counter(talk.shapes)
    if any(key not in TYPED and key != "tool_calls" for shape in shapes for key in shape):
        return False
    held = {key: sum(count for shape, count in shapes.items() if key in shape) for key in (*TYPED, "tool_calls")}
    texts = all(len(column) - column.count(None) == held.get(key, 0) for key, column in talk.columns.items())
    return texts and len(talk.calling) == held["tool_calls"]


_Calls = list[tuple[Any, Any, str]]
_Columns = tuple[Any, Any, Any, Any, _Calls, Any]


def _message(message: Any, lost: list[Placeholder]) -> _Columns:
    """Return the columns of one message that is not plain: role, content, name, reasoning, tool calls and rest."""
    if type(message) is not dict:
        message = _as_dict(message)
    if type(message) is not dict:
        return None, readable(message) or "", None, None, [], encode(message, lost)
    try:
        return _typed_message(message, lost)
    except INSPECTION_ERRORS:  # the keys cannot be compared, so only `rest` has the exact value
        return None, "", None, None, [], encode(message, lost)


def _typed_message(message: dict[Any, Any], lost: list[Placeholder]) -> _Columns:
    values = [message.get(key) for key in TYPED]
    calls = _usual_calls(message["tool_calls"], lost) if "tool_calls" in message else []
    exact_keys = {key for key, value in zip(TYPED, values, strict=True) if is_exact(value)}
    exact_keys |= {"tool_calls"} if calls else set()
    remaining = {key: value for key, value in message.items() if key not in exact_keys}
    rest = encode(remaining, lost) if remaining else None
    return *map(readable, values), _readable_calls(message) if calls is None else calls, rest  # type: ignore[return-value]


def _as_dict(message: Any) -> Any:
    """Return a plain dict for a mapping, and any other message unchanged."""
    try:
        return dict(message) if isinstance(message, Mapping) else message
    except INSPECTION_ERRORS:  # a broken mapping, which is stored as a placeholder
        return message


def _usual_calls(value: Any, lost: list[Placeholder]) -> _Calls | None:
    """Return calls of the usual form, which the columns hold exactly, or None if one has another form."""
    if type(value) is not list or not value or not all(map(_is_usual, value)):
        return None
    functions = [(call.get("id"), call["function"]) for call in value]
    return [(ident, function["name"], encode(function["arguments"], lost)) for ident, function in functions]


def _is_usual(call: Any) -> bool:
    if type(call) is not dict or type(call.get("type")) is not str or call["type"] != "function":
        return False
    ident, function = call.get("id", ""), call.get("function")
    return (
        len(call) == 2 + ("id" in call)
        and type(ident) is str
        and is_valid_unicode(ident)
        and type(function) is dict
        and function.keys() == {"name", "arguments"}
        and type(function["name"]) is str
        and is_valid_unicode(function["name"])
    )


def _readable_calls(message: dict[Any, Any]) -> _Calls:
    """Return readable columns of unusual calls, for queries; `rest` has their exact values."""
    try:
        return [(readable(call.id), readable(call.name), encode(call.arguments)) for call in calls_of(message)]
    except INSPECTION_ERRORS:
        return []


def read_message(row: Mapping[str, Any]) -> Any:
    rest = decode(row["rest"]) if row["rest"] else {}
    if type(rest) is not dict:
        return rest
    message: dict[Any, Any] = {}
    for key, column in TYPED.items():
        if row[column] is not None:
            message[key] = row[column]
    if row["tool_calls"]:
        message["tool_calls"] = [_read_call(call) for call in row["tool_calls"]]
    message.update(rest)
    return message


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    ident = {} if call["id"] is None else {"id": call["id"]}
    return {**ident, "type": "function", "function": {"name": call["name"], "arguments": decode(call["arguments"])}}
