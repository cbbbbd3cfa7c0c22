"""Files of JSON lines that other libraries left in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollout_plugins.content.foreign_values import Lost, Unplaced, convert_each
from rollout_plugins.errors import RunError

BROKEN = Lost("row with values of the wrong kind")


def find(path: Path, pattern: str, what: str) -> list[Path]:
    """The file itself, or the files inside a folder, numbers in their names in numerical order."""
    if path.is_file():
        return [path]
    found = sorted((file for file in path.glob(pattern) if file.is_file()), key=_natural)
    if not found:
        raise RunError(f"no {pattern} in {path}; give {what}")
    return found


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", str(path)) if piece]


def each_row(path: Path, convert: Callable[[Any], Unplaced | Lost]) -> Iterator[Unplaced | Lost]:
    """What each object in a file of JSON lines becomes."""
    return convert_each(convert, json_lines(path), BROKEN)


def json_lines(path: Path) -> Iterator[dict[str, Any] | Lost]:
    """The objects in a file of JSON lines; a line that is not one is lost, such as a torn last line."""
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                yield Lost("line that is not JSON" if line.endswith(b"\n") else "torn last line")
                continue
            yield value if isinstance(value, dict) else Lost("line that is not a JSON object")
