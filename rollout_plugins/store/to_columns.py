"""Rollouts become rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Image, Placeholder, Rollout, Tokens, ToolCall

from rollout_plugins.messages import calls_of
from rollout_plugins.store.codec import clean, encode
from rollout_plugins.store.row import TROUBLE, Row, answer, is_exact, isinstance_, json_of, readable, scalars
from rollout_plugins.store.schema import (
    CALL,
    CALL_DEFAULTS,
    IMAGE,
    MESSAGE,
    REWARD,
    SCALARS,
    SCHEMA,
    TEXT,
    TOKENS,
    TOOL_CALL,
    TYPED,
)


def to_batch(rollouts: Sequence[Rollout], lost: list[Placeholder]) -> pa.RecordBatch:
    """Rows for the rollouts. Never fails on content.

    What can't be kept is a `Placeholder` where it was, or, in a column that takes only numbers or text, a mark
    `lost:<path>` beside it. Both are appended to `lost`.
    """
    rows = [Row(rollout, lost) for rollout in rollouts]
    made = {name: scalars(name, kind, rows) for name, kind in SCALARS.items()}
    made["rewards"] = _rewards(rows)
    made["tool_calls"], made["calls"], made["failed_calls"] = _tool_calls(rows)
    made["prompt"], _ = _messages("prompt", rows)
    made["completion"], made["turns"] = _messages("completion", rows)
    made["images"] = _images(rows)
    made["tokens"] = _tokens(rows)
    for name in ("columns", "extra"):
        made[name] = pa.array([json_of(row.mapping(name), lost) for row in rows], TEXT)
    marks = [{**row.mapping("marks"), **row.marks} for row in rows]
    made["marks"] = pa.array([json_of(value, lost) for value in marks], TEXT)
    made["rest"] = pa.array([json_of(row.rest, lost) for row in rows], TEXT)
    return pa.RecordBatch.from_arrays([made[name] for name in SCHEMA.names], schema=SCHEMA)


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(list(accumulate(lengths, initial=0)), pa.int32())


def _list_of(kind: Any, lengths: Iterable[int], columns: Mapping[str, Any]) -> pa.ListArray:
    """A list column from flat child columns and the length of each row's list."""
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in kind
    ]
    return pa.ListArray.from_arrays(_offsets(lengths), pa.StructArray.from_arrays(arrays, fields=list(kind)))


def _columns(kind: Any) -> dict[str, list[Any]]:
    return {field.name: [] for field in kind}


def _rewards(rows: Sequence[Row]) -> pa.ListArray:
    for row in rows:
        row.rewards = _rewards_of(row)
        if not all(type(name) is str and clean(name) for name in row.rewards):
            row.rest["rewards"] = row.rewards
    flat = [(readable(name), value) for row in rows for name, value in row.rewards.items()]
    columns = {"name": [name for name, _ in flat], "value": [value for _, value in flat]}
    return _list_of(REWARD, (len(row.rewards) for row in rows), columns)


def _rewards_of(row: Row) -> dict[Any, float | None]:
    rewards = row.mapping("rewards")
    if all(type(value) is float or value is None for value in rewards.values()):
        return rewards
    return {name: row.fit(value, pa.float64(), f"rewards.{readable(name)}") for name, value in rewards.items()}


def _tool_calls(rows: Sequence[Row]) -> tuple[pa.ListArray, pa.Array, pa.Array]:
    """The calls, how many there were, and how many of those failed."""
    out = _columns(TOOL_CALL)
    counts, failed = [], []
    for row in rows:
        calls = row.sequence("tool_calls", ToolCall)
        for index, call in enumerate(calls):
            _tool_call_row(call, out, row, f"tool_calls[{index}]")
        counts.append(len(calls))
        failed.append(
            sum(status in ("error", "unknown") for status in out["status"][len(out["status"]) - len(calls) :])
        )
    return _list_of(TOOL_CALL, counts, out), pa.array(counts, pa.int64()), pa.array(failed, pa.int64())


def _tool_call_row(call: ToolCall, out: dict[str, list[Any]], row: Row, where: str) -> None:
    rest: dict[str, Any] = {}
    result = call.result
    if result is None and call.reply is not None:
        rest["result"] = None
    elif type(result) is str and result == answer(row.rollout.completion, call.reply):
        result = None
    for name, value in (("name", call.name), ("result", result), ("error", call.error)):
        if value is None or is_exact(value):
            out[name].append(value)
        else:
            out[name].append(readable(value))
            rest[name] = value
    for name in ("turn", "position", "reply"):
        value = getattr(call, name)
        small = type(value) is int and 0 <= value < 2**31
        out[name].append(value if small else row.fit(value, pa.int32(), f"{where}.{name}", CALL_DEFAULTS[name]))
    status, seconds = call.status, call.seconds
    out["status"].append(status if is_exact(status) else row.fit(status, TEXT, f"{where}.status", "ok"))
    exact = seconds is None or type(seconds) is float
    out["seconds"].append(seconds if exact else row.fit(seconds, pa.float64(), f"{where}.seconds"))
    out["arguments"].append(encode(call.arguments, row.lost))
    out["rest"].append(json_of(rest, row.lost))


def _images(rows: Sequence[Row]) -> pa.ListArray:
    out = _columns(IMAGE)
    counts = []
    for row in rows:
        images = row.sequence("images", Image)
        for index, image in enumerate(images):
            for field in IMAGE:
                default = "" if field.name == "hash" else None
                value = row.fit(getattr(image, field.name), field.type, f"images[{index}].{field.name}", default)
                out[field.name].append(value)
        counts.append(len(images))
    return _list_of(IMAGE, counts, out)


def _tokens(rows: Sequence[Row]) -> pa.StructArray:
    """All null, and free, unless the run keeps tokens."""
    kept = [_tokens_of(row) for row in rows]
    try:
        return pa.array(kept, TOKENS)
    except TROUBLE:
        return pa.array([_tokens_that_fit(row, values) for row, values in zip(rows, kept, strict=True)], TOKENS)


def _tokens_of(row: Row) -> dict[str, Any] | None:
    tokens = row.rollout.tokens
    if tokens is None:
        return None
    if not isinstance_(tokens, Tokens):
        row.lose(tokens, "tokens", "no Tokens")
        return None
    return {field.name: _listed(getattr(tokens, field.name)) for field in TOKENS}


def _listed(values: Any) -> Any:
    """A list for arrays and tensors; everything else as it is."""
    return values.tolist() if hasattr(values, "tolist") else values


def _tokens_that_fit(row: Row, values: dict[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    fitting = {}
    for field in TOKENS:
        try:
            fitting[field.name] = pa.array([values[field.name]], field.type).to_pylist()[0]
        except TROUBLE:
            row.lose(values[field.name], f"tokens.{field.name}", "no list of such numbers")
            fitting[field.name] = None
    return fitting


def _messages(name: str, rows: Sequence[Row]) -> tuple[pa.ListArray, pa.Array]:
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
    columns["tool_calls"] = _list_of(CALL, (len(message[4]) for message in flat), call_columns)
    return _list_of(MESSAGE, counts, columns), pa.array(turns, pa.int64())


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
        if type(value) is str and (value.isascii() or clean(value)):
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
        and clean(ident)
        and type(function) is dict
        and function.keys() == {"name", "arguments"}
        and type(function["name"]) is str
        and clean(function["name"])
    )


def _readable_calls(message: dict[Any, Any]) -> _Calls:
    """Unusual calls stand in `rest` exactly; these columns only let people find them."""
    try:
        return [(readable(call.id), readable(call.name), encode(call.arguments)) for call in calls_of(message)]
    except TROUBLE:
        return []
