"""Read messages in any of their formats. This is the only module that knows the formats. Nothing here raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollout_hookspecs import Image, Placeholder, ToolCall

IMAGE = "[IMAGE]"
_MEDIA = {"video": "[VIDEO]", "video_url": "[VIDEO]", "audio": "[AUDIO]", "input_audio": "[AUDIO]", "file": "[FILE]"}
REASONING = ("reasoning_content", "reasoning", "thinking")


class Call(NamedTuple):
    """A tool call as a message contains it, without its outcome."""

    id: str | None
    name: Any
    arguments: Any


def field_of(message: Any, name: str) -> Any:
    """Return the value of a mapping under `name`; None if the message is no mapping or raises."""
    try:
        return message.get(name) if isinstance(message, Mapping) else None
    except Exception:  # treated as if the field were missing
        return None


def role_of(message: Any) -> str:
    role = field_of(message, "role")
    return role if isinstance(role, str) else "unknown"


def text_of(content: Any) -> str:
    """Return content as a person reads it: text blocks joined, `[IMAGE]` for each image, JSON for other values."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "\n".join(_block_text(block) for block in content)
    return _block_text(content)


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, (Image, Placeholder)):
        return str(block)
    if isinstance(block, Mapping):
        kind = block.get("type")
        if isinstance(block.get("text"), str) and kind in {None, "text", "input_text", "output_text"}:
            return str(block["text"])
        if isinstance(kind, str) and "image" in kind:
            return IMAGE
        if isinstance(kind, str) and kind in _MEDIA:
            return _MEDIA[kind]
        if isinstance(kind, str) and kind in REASONING:
            return text_of(block.get(kind) or block.get("text"))
    return compact(block)


def reasoning_of(message: Any) -> str:
    """Return the message's reasoning text from whichever key has it; empty if there is none."""
    texts = (field_of(message, key) for key in REASONING)
    return next((value for value in texts if isinstance(value, str) and value), "")


def calls_of(message: Any) -> list[Call]:
    """Return the tool calls of a message, malformed ones included: a value that is not a list counts as one call."""
    calls = field_of(message, "tool_calls")
    if calls is None:
        return []
    return [_call(call) for call in calls] if isinstance(calls, (list, tuple)) else [_call(calls)]


def _call(call: Any) -> Call:
    if not isinstance(call, Mapping):
        return Call(None, None, call)
    function = field_of(call, "function")  # a dict, only the name, or missing in a flat call
    inner = function if isinstance(function, Mapping) else call
    name = function if isinstance(function, str) else field_of(inner, "name")
    ident = field_of(call, "id")
    return Call(ident if isinstance(ident, str) else None, name, field_of(inner, "arguments"))


def arguments_of(call: Call | ToolCall) -> Any:
    """Return the arguments, parsed if they are JSON text."""
    if isinstance(call.arguments, str):
        try:
            return json.loads(call.arguments)
        except (ValueError, RecursionError):
            return call.arguments
    return call.arguments


def call_text(call: Call | ToolCall) -> str:
    """Return the call as a person would write it: `name(arg=value, …)`."""
    name = call.name if isinstance(call.name, str) else compact(call.name)
    arguments = arguments_of(call)
    if arguments is None:
        return f"{name}()"
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{key}={compact(value)}' for key, value in arguments.items())})"
    return f"{name}({compact(arguments)})"


def compact(value: Any) -> str:
    """Return one line of JSON-like text for any value; if that fails, its str, and at last the name of its type."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except Exception:  # noqa: S110 - falls through to str
        pass
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def as_messages(value: Any, role: str) -> tuple[tuple[Any, ...], bool]:
    """Return messages as a tuple, and whether they were a plain text, which becomes one message."""
    if value is None:
        return (), False
    if isinstance(value, str):
        return ({"role": role, "content": value},), True
    if isinstance(value, (list, tuple)):
        return tuple(value), False
    return (value,), False
