"""Read the JSON-lines files that other libraries leave in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollout_plugins.content.foreign_values import Lost, Unplaced, convert_each
from rollout_plugins.errors import RunError

BROKEN = Lost("row with values of the wrong kind")


def find_files(path: Path, pattern: str, what: str) -> list[Path]:
    """Return the file itself, or the matching files inside a folder, sorted with the numbers in their names as
    numbers.
    """
    if path.is_file():
        return [path]
    files = sorted((file for file in path.glob(pattern) if file.is_file()), key=_natural_order)
    if not files:
        raise RunError(f"{path} contains no {pattern}; give {what}")
    return files


def _natural_order(path: Path) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", str(path)) if piece]


def each_row(path: Path, convert: Callable[[Any], Unplaced | Lost]) -> Iterator[Unplaced | Lost]:
    """Yield the conversion of each object in a file of JSON lines."""
    return convert_each(convert, json_lines(path), BROKEN)


def json_lines(path: Path) -> Iterator[dict[str, Any] | Lost]:
    """Yield the objects in a file of JSON lines, and a `Lost` for each other line, such as an incomplete last line."""
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                yield Lost("line that is not JSON" if line.endswith(b"\n") else "incomplete last line")
                continue
            yield value if isinstance(value, dict) else Lost("line that is not a JSON object")
