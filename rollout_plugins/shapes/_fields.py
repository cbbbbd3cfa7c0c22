"""The fields of a rollout, read from another library's rows. Odd values there do no harm."""

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
    """Why a rollout ended, from a sampler's word for it."""
    return FINISHES.get(str(reason), "unknown")


def whole_or_none(value: Any) -> int | None:
    """A whole number; None for what is not a number."""
    return None if real(value) is None else whole(value)


def whole(value: Any, default: int = 0) -> int:
    known = finite(value)
    return default if known is None else int(known)


def dict_in(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def list_in(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    return value if isinstance(value, list) else []


def spoken(prompt: Any, completion: Any) -> dict[str, Any]:
    """What was said, as the fields of a rollout; tool calls come out as OpenAI writes them."""
    return incoming.conversation_fields(_nested_calls(prompt), _nested_calls(completion))


def messages(value: Any) -> tuple[Any, ...]:
    """Messages, with tool calls as OpenAI writes them."""
    return as_messages(_nested_calls(value), "user")[0]


def _nested_calls(value: Any) -> Any:
    return [_message(item) for item in value] if isinstance(value, (list, tuple)) else _message(value)


def _message(item: Any) -> Any:
    calls = item.get("tool_calls") if isinstance(item, dict) else None
    return {**item, "tool_calls": [_call(call) for call in calls]} if isinstance(calls, list) else item


def _call(call: Any) -> Any:
    """`{"id", "type": "function", "function": {"name", "arguments"}}`, whichever way it was written."""
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
    """The numbers and None in a mapping, and what else was given; None for nothing else."""
    if not isinstance(values, Mapping):
        return {}, values
    read = {name: to_float(value) for name, value in values.items()}
    good = {name: value for name, value in read.items() if value is None or type(value) is float}
    return {str(name): value for name, value in good.items()}, {n: v for n, v in read.items() if n not in good} or None
