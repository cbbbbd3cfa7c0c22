"""Read the run files, in which each rank of a run records its facts and counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_plugins.content.exact_json import from_tagged
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run_files(folder: Path) -> list[Path]:
    """Return the run file of each rank, rank 0 first."""
    paths = [path for node in nodes_of(folder) for path in (*node.glob("run.json"), *node.glob("run-*.json"))]
    return sorted(paths, key=lambda path: (path.name != "run.json", path.name))


def earlier_attempts(path: Path) -> list[dict[str, Any]]:
    """Return the attempts in a run file unchecked, or an empty list if the file cannot be read."""
    return [attempt for attempt in as_list(read_facts(path, {}).get("attempts")) if isinstance(attempt, dict)]


def read_facts(path: Path, damaged: dict[str, str]) -> Mapping[str, Any]:
    """Return the content of a run file; if it cannot be read, return nothing and add the reason to `damaged`."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(facts, dict):
            return {name: from_tagged(value) for name, value in facts.items()}
        damaged[path.name] = f"expected a JSON object, found {type(facts).__name__}"
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        damaged[path.name] = str(error)
    return {}


def as_list(value: Any) -> Sequence[Any]:
    """Return the items of a JSON list, or nothing for any other value."""
    return value if isinstance(value, (list, tuple)) else ()


def as_count(value: Any) -> int | None:
    """Return a valid count, or None for any other value."""
    # Not isinstance, because True is an int. Beyond 2**53, JSON readers in other languages round.
    return value if type(value) is int and 0 <= value < 2**53 else None
