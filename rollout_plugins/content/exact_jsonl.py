"""Restore rollouts exactly from lines of plain JSON, which state most of a rollout but not all.

A line is made for people and for other programs: NaN is text, nested columns are text, and tool calls have generated
ids. `find_missing` returns what a line does not state exactly, and `restore_rollout` reads the rollout from both. A
value that the line does state is read from the line, so that edits of the line take effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

import orjson
from rollout_hookspecs import Rollout, ToolCall

from rollout_plugins.content.exact_json import encode, from_tagged, is_valid_unicode
from rollout_plugins.content.messages import calls_of, field_of
from rollout_plugins.content.rollout_columns import DEFAULTS

#: Token ids are not exported, and a rendered prompt repeats the messages.
NOT_IN_LINES = frozenset({"tokens", "rendered"})
_CONVERSATIONS = ("prompt", "completion")
_LISTS = frozenset({*_CONVERSATIONS, "tool_calls"})
#: Fields that a line has under another name.
_NAMES = {"run_id": "run", "columns": "info"}
_FIELDS = tuple(field.name for field in fields(Rollout) if field.name not in {*NOT_IN_LINES, *_LISTS})
_CALL = {field.name: field.default for field in fields(ToolCall)}
_COUNTS = {"attempt": 1, "generation": 0, "rank": 0, "index": 0, "group": 0, "group_size": 0}
_LIMIT = 2**31
#: Types that JSON represents exactly, and the limit of its integers.
_EXACT_TYPES, _INT64 = {bool, type(None)}, 2**63


def _exact(value: Any) -> Any:
    """Return the value in JSON types, with a tag for each type that JSON does not have."""
    kind = type(value)
    is_same = kind in _EXACT_TYPES or (kind is str and is_valid_unicode(value)) or (kind is float and isfinite(value))
    if is_same or (kind is int and abs(value) < _INT64):
        return value
    return orjson.loads(encode(dict(value) if isinstance(value, Mapping) else value))


_DEFAULT_VALUES = {name: _exact(DEFAULTS[name]()) for name in _FIELDS if name != "id"}


def find_missing(rollout: Rollout, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the line does not state exactly, as JSON with tags."""
    missing = {
        name: value
        for name in _FIELDS
        if not _is_empty(current := getattr(rollout, name)) and (value := _exact(current)) != _stated_value(line, name)
    }
    for name in _CONVERSATIONS:
        missing[name] = [
            _difference(message, line_message)
            for message, line_message in zip(getattr(rollout, name), line[name], strict=True)
        ]
    calls = [_missing_call_fields(call, rollout.completion) for call in rollout.tool_calls]
    return {**missing, "tool_calls": calls}


def restore_rollout(line: Mapping[str, Any]) -> Rollout:
    """Return the rollout of a line. Raise if the line does not fit the result of `find_missing` in its `exact`."""
    missing = line["exact"]
    values = {
        name: from_tagged(missing[name]) if name in missing else from_tagged(_stated_value(line, name))
        for name in _FIELDS
    }
    for name in _CONVERSATIONS:
        pairs = zip(line[name], missing[name], strict=True)
        values[name] = tuple(_restore_message(line_message, difference) for line_message, difference in pairs)
    calls = tuple(_restore_call(call, values["completion"]) for call in missing["tool_calls"])
    rollout = Rollout(**values, tool_calls=calls)
    if not _has_place(rollout):
        raise ValueError("the line has no valid id and position of a rollout")
    return rollout


def _is_empty(value: Any) -> bool:
    return type(value) is tuple and not value


def _has_place(rollout: Rollout) -> bool:
    counts = [(getattr(rollout, name), least) for name, least in _COUNTS.items()]
    return (
        bool(rollout.id)
        and rollout.split in {"train", "eval"}
        and all(type(count) is int and least <= count < _LIMIT for count, least in counts)
    )


def _stated_value(line: Mapping[str, Any], name: str) -> Any:
    """Return the value that a line states for the field `name`; the default if the line has no such field."""
    key = _NAMES.get(name, name)
    return line[key] if key in line or name == "id" else _DEFAULT_VALUES[name]


def _difference(message: Any, line_message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how to get the message from the one in a line: keys to set and to drop, or the message itself."""
    exact = _exact(message)
    if exact == line_message:
        return None
    if type(message) is not dict or not all(type(key) is str for key in message) or exact.keys() != message.keys():
        return {"is": exact}
    changed = {key: value for key, value in exact.items() if key not in line_message or line_message[key] != value}
    dropped = [key for key in line_message if key not in exact]
    return {**({"set": changed} if changed else {}), **({"drop": dropped} if dropped else {})}


def _restore_message(line_message: Mapping[str, Any], difference: Mapping[str, Any] | None) -> Any:
    if difference is None:
        return from_tagged(line_message)
    if "is" in difference:
        return from_tagged(difference["is"])
    remaining = {key: value for key, value in line_message.items() if key not in difference.get("drop", ())}
    message = {**remaining, **difference.get("set", {})}
    return {key: from_tagged(value) for key, value in message.items()}


def _missing_call_fields(call: ToolCall, completion: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a call that follow neither from its messages nor from the defaults."""
    derived = dict(_derive_call_fields(call.turn, call.position, call.reply, completion))
    values = {name: _exact(getattr(call, name)) for name in _CALL}
    return {name: value for name, value in values.items() if name not in derived or value != _exact(derived[name])}


def _restore_call(call: Mapping[str, Any], completion: Sequence[Any]) -> ToolCall:
    values = {name: from_tagged(value) for name, value in call.items() if name in _CALL}
    turn, position, reply = (values.get(name, _CALL[name]) for name in ("turn", "position", "reply"))
    return ToolCall(**{**dict(_derive_call_fields(turn, position, reply, completion)), **values})


def _derive_call_fields(turn: Any, position: Any, reply: Any, completion: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a call that need not be stated: the defaults, and those that its two messages contain."""
    yield from ((name, value) for name, value in _CALL.items() if name not in {"name", "arguments"})
    if type(turn) is int and type(position) is int and 0 <= turn < len(completion):
        calls = calls_of(completion[turn])
        if 0 <= position < len(calls):
            yield from (("name", calls[position].name), ("arguments", calls[position].arguments))
    if type(reply) is int and 0 <= reply < len(completion):
        yield "result", field_of(completion[reply], "content")
