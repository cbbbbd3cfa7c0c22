"""What the run files say: who made the run, its attempts, what was dropped."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Run

from rollout_plugins.errors import RunError
from rollout_plugins.store.codec import untagged
from rollout_plugins.store.schema import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TUPLES = ("reward_names", "reward_weights", "tools")


def run_files(folder: Path) -> list[Path]:
    """The facts of each rank; rank 0 first, if it is there."""
    return sorted(
        [*folder.glob("run.json"), *folder.glob("run-*.json")], key=lambda path: (path.name != "run.json", path)
    )


class Facts:
    """The run files of one run, read once."""

    def __init__(self, folder: Path, damaged: dict[str, str]) -> None:
        self._folder = folder
        self._read = [facts for path in run_files(folder) if (facts := _read(path, damaged))]
        newest = max((_whole(facts.get("schema"), 1) for facts in self._read), default=1)
        if newest > VERSION:
            raise RunError(
                f"{folder} was written with schema {newest}; this version reads up to {VERSION}: "
                "pip install -U rollout-plugins"
            )

    @property
    def info(self) -> Run:
        known = {f.name for f in fields(Run)}
        facts = {k: untagged(v) for k, v in (self._read[0] if self._read else {}).items() if k in known}
        for name in _TUPLES:
            value = facts.get(name)
            facts[name] = tuple(value) if isinstance(value, (list, tuple)) else ()
        return Run(**{"id": self._folder.name, **facts, "dir": str(self._folder)})

    @property
    def attempts(self) -> list[dict[str, Any]]:
        given = [(facts.get("attempts"), facts.get("rank", 0)) for facts in self._read]
        found = [(attempt, rank) for attempts, rank in given if isinstance(attempts, list) for attempt in attempts]
        return [
            {**untagged(attempt), "attempt": _whole(attempt.get("attempt"), 1), "rank": rank}
            for attempt, rank in found
            if isinstance(attempt, dict)
        ]

    @property
    def drops(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for attempt in self.attempts:
            drops = attempt.get("drops")
            for reason, count in drops.items() if isinstance(drops, dict) else ():
                total[str(reason)] = total.get(str(reason), 0) + _whole(count, 0)
        return total

    @property
    def restarts(self) -> list[tuple[int, int]]:
        """(attempt, step it started from) of every attempt that did steps of an earlier one again."""
        found = {(_whole(a.get("attempt"), 1), a.get("resumed_from")) for a in self.attempts}
        return sorted((attempt, step) for attempt, step in found if attempt > 1 and type(step) is int)


def _whole(value: Any, default: int) -> int:
    return value if type(value) is int else default


def _read(path: Path, damaged: dict[str, str]) -> Mapping[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        damaged[path.name] = str(error)
        return {}
    if not isinstance(facts, dict):
        damaged[path.name] = f"expected a JSON object, found {type(facts).__name__}"
        return {}
    return facts
