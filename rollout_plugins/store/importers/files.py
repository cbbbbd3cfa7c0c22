"""What all formats need: lines of JSON, numbers, messages with their tool calls."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_hookspecs import ToolCall

from rollout_plugins.errors import RunError
from rollout_plugins.messages import calls_of, role_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
Skip = Callable[[str], None]
_FAILED = ("{'error': ", '{"error": ', "Error: ", "Traceback (most recent call last)")


def find(path: Path, pattern: str, what: str) -> list[Path]:
    """The file itself, or the files inside a folder, numbers in their names in numerical order."""
    if path.is_file():
        return [path]
    found = sorted((file for file in path.glob(pattern) if file.is_file()), key=natural)
    if not found:
        raise RunError(f"no {pattern} in {path}; give {what}")
    return found


def natural(path: Path) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", str(path)) if piece]


def json_lines(path: Path, skip: Skip) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines. What is none is skipped, a torn last line among them."""
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                skip("torn last line" if not line.endswith(b"\n") else "line that is no JSON")
                continue
            if isinstance(value, dict):
                yield value
            else:
                skip("line that is no JSON object")


def converted(path: Path, skip: Skip, convert: Callable[[dict[str, Any]], list[T]]) -> Iterator[T]:
    """What each object in a file of JSON lines becomes. One that breaks the conversion is skipped."""
    for row in json_lines(path, skip):
        try:
            found = convert(row)
        except Exception as error:
            skip(f"row with values of the wrong kind ({type(error).__name__})")
            continue
        yield from found


def number(value: Any) -> float | None:
    """A float for a number, NaN included; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def whole(value: Any, default: int = 0) -> int:
    real = number(value)
    return int(real) if real is not None and math.isfinite(real) else default


def given(value: Any) -> Any:
    """The float in any kind of number: Python's, NumPy's, a tensor, a flag. Anything else stays for the store to mark.

    Text is not a number here: what it was meant to say is not ours to guess.
    """
    if value is None or isinstance(value, (str, bytes)):
        return value
    try:
        item = getattr(value, "item", None)
        return float(item() if callable(item) else value)
    except (Exception, SystemExit):  # several numbers, or none
        return value


def scores(values: Any) -> tuple[dict[str, float | None], Any]:
    """The numbers and None in a mapping, and what else was given; None for nothing else."""
    if not isinstance(values, Mapping):
        return {}, values
    read = {name: given(value) for name, value in values.items()}
    good = {name: value for name, value in read.items() if value is None or type(value) is float}
    return {str(name): value for name, value in good.items()}, {n: v for n, v in read.items() if n not in good} or None


def dict_in(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def list_in(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    return value if isinstance(value, list) else []


def messages(value: Any, role: str) -> tuple[tuple[Any, ...], bool]:
    """Messages, and whether they were a plain text. Tool calls come out as OpenAI writes them."""
    if value is None:
        return (), False
    if isinstance(value, str):
        return ({"role": role, "content": value},), True
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_message(item) for item in items), False


def _message(item: Any) -> Any:
    calls = item.get("tool_calls") if isinstance(item, dict) else None
    if not isinstance(calls, list):
        return item
    return {**item, "tool_calls": [_call(call) for call in calls]}


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


def tool_calls(completion: Sequence[Any]) -> tuple[ToolCall, ...]:
    """Every call with the message that answered it: by id where there are ids, else in order."""
    found = []
    for turn, message in enumerate(completion):
        replies = _replies(completion, turn)
        for position, call in enumerate(calls_of(message)):
            named = [at for at in replies if call.id and _field(completion[at], "tool_call_id") == call.id]
            unnamed = [at for at in replies if not _field(completion[at], "tool_call_id")]
            reply = next(iter(named or unnamed), None)
            if reply is not None:
                replies.remove(reply)
            result = _field(completion[reply], "content") if reply is not None else None
            failed = text_of(result).startswith(_FAILED)
            found.append(
                ToolCall(
                    name=call.name,
                    arguments=call.arguments,
                    turn=turn,
                    position=position,
                    reply=reply,
                    result=result,
                    error=text_of(result) if failed else None,
                    status="not_run" if reply is None else "error" if failed else "ok",
                )
            )
    return tuple(found)


def _replies(completion: Sequence[Any], turn: int) -> list[int]:
    found = []
    for at in range(turn + 1, len(completion)):
        if role_of(completion[at]) not in {"tool", "function"}:
            break
        found.append(at)
    return found


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else None
