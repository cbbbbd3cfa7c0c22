"""The files of facts and counts that each rank of a run keeps: which there are, and what stands in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_plugins.content.exact_json import from_tagged
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run_files(folder: Path) -> list[Path]:
    """The facts of each rank; rank 0 first, if it is there."""
    found = [path for node in nodes_of(folder) for path in (*node.glob("run.json"), *node.glob("run-*.json"))]
    return sorted(found, key=lambda path: (path.name != "run.json", path.name))


def earlier_attempts(path: Path) -> list[dict[str, Any]]:
    """The attempts that a run file lists, as they stand there; none when it cannot be read."""
    return [attempt for attempt in listed(read_facts(path, {}).get("attempts")) if isinstance(attempt, dict)]


def read_facts(path: Path, damaged: dict[str, str]) -> Mapping[str, Any]:
    """What a run file says; nothing when it cannot be read, and then this notes why in `damaged`."""
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


def listed(value: Any) -> Sequence[Any]:
    """The items of a JSON list; none when it is something else."""
    return value if isinstance(value, (list, tuple)) else ()


def whole(value: Any) -> int | None:
    """A number that counts something."""
    # Not isinstance, as True is an int; and beyond 2**53 JSON readers in other languages round.
    return value if type(value) is int and 0 <= value < 2**53 else None
