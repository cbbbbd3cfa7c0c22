"""A rollout and a flat line of plain JSON that shows it: what the line leaves out, in both directions.

A line is made for people and for other programs: NaN is text, nested columns are text, tool calls have ids of ours.
`missing` finds what a line does not state exactly, and `restored` reads the rollout from the line and that. Whatever
the line does state exactly is read from the line, so that an edited line counts as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

import orjson
from rollout_hookspecs import Rollout, ToolCall

from rollout_plugins.content.exact_json import encode, is_clean, untagged
from rollout_plugins.content.messages import calls_of, field_of
from rollout_plugins.content.rollout_columns import DEFAULTS

#: Token ids are not exported to lines, and a rendered prompt repeats the messages.
NOT_IN_LINES = frozenset({"tokens", "rendered"})
_SPEAKERS = ("prompt", "completion")
_LISTS = frozenset({*_SPEAKERS, "tool_calls"})
#: Fields that a line has under another name.
_NAMES = {"run_id": "run", "columns": "info"}
_FIELDS = tuple(field.name for field in fields(Rollout) if field.name not in {*NOT_IN_LINES, *_LISTS})
_CALL = {field.name: field.default for field in fields(ToolCall)}
_COUNTS = {"attempt": 1, "generation": 0, "rank": 0, "index": 0, "group": 0, "group_size": 0}
_MOST = 2**31
#: Types and integers that JSON has as they are.
_SAME, _INT64 = {bool, type(None)}, 2**63


def _exact(value: Any) -> Any:
    """The value in JSON types, with a tag for each that JSON does not have."""
    kind = type(value)
    is_same = kind in _SAME or (kind is str and is_clean(value)) or (kind is float and isfinite(value))
    if is_same or (kind is int and abs(value) < _INT64):
        return value
    return orjson.loads(encode(dict(value) if isinstance(value, Mapping) else value))


_UNSAID = {name: _exact(DEFAULTS[name]()) for name in _FIELDS if name != "id"}


def missing(rollout: Rollout, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the line does not state exactly, as JSON with the tags of the store."""
    found = {
        name: value
        for name in _FIELDS
        if not _is_empty(given := getattr(rollout, name)) and (value := _exact(given)) != _stated(line, name)
    }
    for name in _SPEAKERS:
        found[name] = [
            _difference(message, shown) for message, shown in zip(getattr(rollout, name), line[name], strict=True)
        ]
    calls = [_call(call, rollout.completion) for call in rollout.tool_calls]
    return {**found, "tool_calls": calls}


def restored(line: Mapping[str, Any]) -> Rollout:
    """Return the rollout that a line shows, by what is `missing` in it. Raises when the two do not fit together."""
    extra = line["exact"]
    known = {name: untagged(extra[name]) if name in extra else untagged(_stated(line, name)) for name in _FIELDS}
    for name in _SPEAKERS:
        pairs = zip(line[name], extra[name], strict=True)
        known[name] = tuple(_message(shown, difference) for shown, difference in pairs)
    calls = tuple(_read_call(call, known["completion"]) for call in extra["tool_calls"])
    rollout = Rollout(**known, tool_calls=calls)
    if not _has_place(rollout):
        raise ValueError("the line does not say which rollout of the run it is")
    return rollout


def _is_empty(value: Any) -> bool:
    return type(value) is tuple and not value


def _has_place(rollout: Rollout) -> bool:
    counts = [(getattr(rollout, name), least) for name, least in _COUNTS.items()]
    return (
        bool(rollout.id)
        and rollout.split in {"train", "eval"}
        and all(type(count) is int and least <= count < _MOST for count, least in counts)
    )


def _stated(line: Mapping[str, Any], name: str) -> Any:
    """What a line states of a field. A field that it does not have is as in a rollout that says nothing of it."""
    key = _NAMES.get(name, name)
    return line[key] if key in line or name == "id" else _UNSAID[name]


def _difference(message: Any, shown: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a message differs from the one that a line shows: keys to set and keys to drop, or the message itself."""
    exact = _exact(message)
    if exact == shown:
        return None
    if type(message) is not dict or not all(type(key) is str for key in message) or exact.keys() != message.keys():
        return {"is": exact}
    changed = {key: value for key, value in exact.items() if key not in shown or shown[key] != value}
    dropped = [key for key in shown if key not in exact]
    return {**({"set": changed} if changed else {}), **({"drop": dropped} if dropped else {})}


def _message(shown: Mapping[str, Any], difference: Mapping[str, Any] | None) -> Any:
    if difference is None:
        return untagged(shown)
    if "is" in difference:
        return untagged(difference["is"])
    left = {key: value for key, value in shown.items() if key not in difference.get("drop", ())}
    message = {**left, **difference.get("set", {})}
    return {key: untagged(value) for key, value in message.items()}


def _call(call: ToolCall, completion: Sequence[Any]) -> dict[str, Any]:
    """The fields of a call that neither its messages nor the defaults say."""
    said = dict(_said(call.turn, call.position, call.reply, completion))
    values = {name: _exact(getattr(call, name)) for name in _CALL}
    return {name: value for name, value in values.items() if name not in said or value != _exact(said[name])}


def _read_call(call: Mapping[str, Any], completion: Sequence[Any]) -> ToolCall:
    known = {name: untagged(value) for name, value in call.items() if name in _CALL}
    turn, position, reply = (known.get(name, _CALL[name]) for name in ("turn", "position", "reply"))
    return ToolCall(**{**dict(_said(turn, position, reply, completion)), **known})


def _said(turn: Any, position: Any, reply: Any, completion: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """What is known of a call without being stated: the defaults, and what its two messages say."""
    yield from ((name, value) for name, value in _CALL.items() if name not in {"name", "arguments"})
    if type(turn) is int and type(position) is int and 0 <= turn < len(completion):
        asked = calls_of(completion[turn])
        if 0 <= position < len(asked):
            yield from (("name", asked[position].name), ("arguments", asked[position].arguments))
    if type(reply) is int and 0 <= reply < len(completion):
        yield "result", field_of(completion[reply], "content")
