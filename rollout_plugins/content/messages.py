"""Reading messages: the one place that knows their many spellings. Never raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollout_hookspecs import Image, Placeholder, ToolCall

IMAGE = "[IMAGE]"
_MEDIA = {"video": "[VIDEO]", "video_url": "[VIDEO]", "audio": "[AUDIO]", "input_audio": "[AUDIO]", "file": "[FILE]"}
REASONING = ("reasoning_content", "reasoning", "thinking")


class Call(NamedTuple):
    """A tool call as it stands in a message, before anything is known about its outcome."""

    id: str | None
    name: Any
    arguments: Any


def field_of(message: Any, name: str) -> Any:
    """What a mapping holds under the name; None for anything else, and for one that breaks when it is read."""
    try:
        return message.get(name) if isinstance(message, Mapping) else None
    except Exception:  # it is shown as if it were not there
        return None


def role_of(message: Any) -> str:
    role = field_of(message, "role")
    return role if isinstance(role, str) else "unknown"


def text_of(content: Any) -> str:
    """Content as a person reads it: text blocks joined, `[IMAGE]` for each image, JSON for the rest."""
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
    """The message's reasoning text, from whichever key holds it; empty when there is none."""
    found = (field_of(message, key) for key in REASONING)
    return next((value for value in found if isinstance(value, str) and value), "")


def calls_of(message: Any) -> list[Call]:
    """The tool calls in a message, malformed ones included: what stands there without being a list is one call."""
    calls = field_of(message, "tool_calls")
    if calls is None:
        return []
    return [_call(call) for call in calls] if isinstance(calls, (list, tuple)) else [_call(calls)]


def _call(call: Any) -> Call:
    if not isinstance(call, Mapping):
        return Call(None, None, call)
    function = field_of(call, "function")  # of this shape, or flat, or the name alone: templates differ
    inner = function if isinstance(function, Mapping) else call
    name = function if isinstance(function, str) else field_of(inner, "name")
    ident = field_of(call, "id")
    return Call(ident if isinstance(ident, str) else None, name, field_of(inner, "arguments"))


def arguments_of(call: Call | ToolCall) -> Any:
    """Arguments parsed when they are JSON text, else as they are."""
    if isinstance(call.arguments, str):
        try:
            return json.loads(call.arguments)
        except (ValueError, RecursionError):
            return call.arguments
    return call.arguments


def call_text(call: Call | ToolCall) -> str:
    """`name(arg=value, …)`, the way a person would write the call."""
    name = call.name if isinstance(call.name, str) else compact(call.name)
    arguments = arguments_of(call)
    if arguments is None:
        return f"{name}()"
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{key}={compact(value)}' for key, value in arguments.items())})"
    return f"{name}({compact(arguments)})"


def compact(value: Any) -> str:
    """One line of JSON-like text for any value; falls back to str and then to the type's name."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except Exception:  # noqa: S110 - the next way is tried
        pass
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def as_messages(value: Any, role: str) -> tuple[tuple[Any, ...], bool]:
    """Messages as they are, and whether they were a plain text, which becomes one message."""
    if value is None:
        return (), False
    if isinstance(value, str):
        return ({"role": role, "content": value},), True
    if isinstance(value, (list, tuple)):
        return tuple(value), False
    return (value,), False
