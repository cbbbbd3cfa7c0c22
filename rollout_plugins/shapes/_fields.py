"""Read the fields of a rollout from another library's rows, whatever values they contain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from rollout_hookspecs._records import Finish

from rollout_plugins.content import foreign_values as incoming
from rollout_plugins.content.messages import as_messages
from rollout_plugins.content.numbers import finite, real
from rollout_plugins.content.rewards import to_float

FINISHES: dict[str, Finish] = {name: name for name in get_args(Finish)} | {"tool_calls": "stop"}


def finish_of(reason: Any) -> Finish:
    """Return why a rollout ended, from the name that a sampler gives the reason."""
    return FINISHES.get(str(reason), "unknown")


def as_whole_or_none(value: Any) -> int | None:
    """Return the value as a whole number; None if it is not a number."""
    return None if real(value) is None else as_whole(value)


def as_whole(value: Any, default: int = 0) -> int:
    """Return the value as a whole number, or `default` if it is not a finite number."""
    number = finite(value)
    return default if number is None else int(number)


def dict_in(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def list_in(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    return value if isinstance(value, list) else []


def message_fields(prompt: Any, completion: Any) -> dict[str, Any]:
    """Return the message fields of a rollout, with tool calls in OpenAI's format."""
    return incoming.conversation_fields(_nested_calls(prompt), _nested_calls(completion))


def messages(value: Any) -> tuple[Any, ...]:
    """Return messages, with tool calls in OpenAI's format."""
    return as_messages(_nested_calls(value), "user")[0]


def _nested_calls(value: Any) -> Any:
    return [_message(item) for item in value] if isinstance(value, (list, tuple)) else _message(value)


def _message(item: Any) -> Any:
    calls = item.get("tool_calls") if isinstance(item, dict) else None
    return {**item, "tool_calls": [_call(call) for call in calls]} if isinstance(calls, list) else item


def _call(call: Any) -> Any:
    """Return the call as `{"id", "type": "function", "function": {"name", "arguments"}}`, whatever form it has."""
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except ValueError:
            return call
    if not isinstance(call, dict) or "function" in call or "name" not in call:
        return call
    rest = {key: value for key, value in call.items() if key not in {"name", "arguments", "type"}}
    return {**rest, "type": "function", "function": {"name": call["name"], "arguments": call.get("arguments")}}


def scores(values: Any) -> tuple[dict[str, float | None], Any]:
    """Split a mapping into its numbers and None, and the other values; the second result is None if there are none."""
    if not isinstance(values, Mapping):
        return {}, values
    converted = {name: to_float(value) for name, value in values.items()}
    numbers = {name: value for name, value in converted.items() if value is None or type(value) is float}
    others = {name: value for name, value in converted.items() if name not in numbers}
    return {str(name): value for name, value in numbers.items()}, others or None
