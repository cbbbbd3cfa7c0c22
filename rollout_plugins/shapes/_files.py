"""What all formats need: lines of JSON, numbers, messages with their tool calls."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_plugins.errors import RunError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
Skip = Callable[[str], None]


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
