"""Messages and the columns that hold them, in both directions; `schema` says which columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Placeholder

from rollout_plugins.content.messages import calls_of
from rollout_plugins.store.codec import TROUBLE, decode, encode, is_clean
from rollout_plugins.store.row import Row, is_exact, list_of, readable
from rollout_plugins.store.schema import CALL, MESSAGE, TYPED


def messages(name: str, rows: Sequence[Row]) -> tuple[pa.ListArray, pa.Array]:
    """The messages, and how many of them the assistant wrote."""
    flat: list[_Columns] = []
    counts, turns = [], []
    for row in rows:
        before = len(flat)
        flat += [_message(message, row.lost) for message in row.messages(name)]
        counts.append(len(flat) - before)
        turns.append(sum(message[0] == "assistant" for message in flat[before:]))
    calls = [call for message in flat for call in message[4]]
    columns: dict[str, Any] = {key: [m[at] for m in flat] for key, at in _AT.items()}
    call_columns = {key: [call[at] for call in calls] for at, key in enumerate(("id", "name", "arguments"))}
    columns["tool_calls"] = list_of(CALL, (len(message[4]) for message in flat), call_columns)
    return list_of(MESSAGE, counts, columns), pa.array(turns, pa.int64())


_AT = {"role": 0, "content": 1, "name": 2, "reasoning": 3, "rest": 5}
_Calls = list[tuple[Any, Any, str]]
_Columns = tuple[Any, Any, Any, Any, _Calls, Any]


def _message(message: Any, lost: list[Placeholder]) -> _Columns:
    """The columns of one message."""
    if type(message) is dict and len(message) == 2:
        role, content = message.get("role"), message.get("content")
        if type(role) is str and type(content) is str and role.isascii() and content.isascii():
            return role, content, None, None, [], None  # what most of them are
    if type(message) is not dict:
        message = _as_dict(message)
    if type(message) is not dict:
        return None, readable(message) or "", None, None, [], encode(message, lost)
    try:
        return _typed_message(message, lost)
    except TROUBLE:  # keys that object to being compared: exact in `rest`, if nowhere else
        return None, "", None, None, [], encode(message, lost)


def _typed_message(message: dict[Any, Any], lost: list[Placeholder]) -> _Columns:
    values = [message.get(key) for key in TYPED]
    left = len(message)
    for value in values:
        if type(value) is str and (value.isascii() or is_clean(value)):
            left -= 1
    calls = _usual_calls(message["tool_calls"], lost) if "tool_calls" in message else []
    if left == bool(calls):
        return *values, calls or [], None  # type: ignore[return-value]
    whole = {key for key, value in zip(TYPED, values, strict=True) if is_exact(value)}
    whole |= {"tool_calls"} if calls else set()
    rest = encode({key: value for key, value in message.items() if key not in whole}, lost)
    return *map(readable, values), _readable_calls(message) if calls is None else calls, rest  # type: ignore[return-value]


def _as_dict(message: Any) -> Any:
    """A plain dict for any mapping, the message itself for everything else."""
    try:
        return dict(message) if isinstance(message, Mapping) else message
    except TROUBLE:  # a mapping that does not map: stored as a placeholder
        return message


def _usual_calls(value: Any, lost: list[Placeholder]) -> _Calls | None:
    """Calls of the usual shape, which the columns hold exactly; None when one of them has another."""
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
        and is_clean(ident)
        and type(function) is dict
        and function.keys() == {"name", "arguments"}
        and type(function["name"]) is str
        and is_clean(function["name"])
    )


def _readable_calls(message: dict[Any, Any]) -> _Calls:
    """Unusual calls stand in `rest` exactly; these columns only let people find them."""
    try:
        return [(readable(call.id), readable(call.name), encode(call.arguments)) for call in calls_of(message)]
    except TROUBLE:
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
