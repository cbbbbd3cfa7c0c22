"""Whether a run has ended, is running, or stopped without saying so; in the same words for lists and viewers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ENDED, RUNNING, NO_END = "ended", "running", "no end written"
FRESH_SECONDS = 600.0
"""A run whose files have not changed for longer than that is no longer called running."""


def has_ended(attempts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the run's last attempt wrote its end, on every process."""
    last = max((attempt.get("attempt", 1) for attempt in attempts), default=0)
    return bool(attempts) and all(one.get("ended") for one in attempts if one.get("attempt", 1) == last)


def state_of(attempts: Sequence[Mapping[str, Any]], changed: float) -> str:
    """Return the word for a run whose newest file changed at this Unix time."""
    if has_ended(attempts):
        return ENDED
    return RUNNING if time.time() - changed < FRESH_SECONDS else NO_END


def files_of(folder: Path) -> list[tuple[str, float, int]]:
    """Return path, time of change and size of each file of a run that training or annotating changes."""
    found = []
    for path in [*folder.glob("run*.json"), *folder.glob("data/*/*"), *folder.glob("annotations/*/*")]:
        try:
            about = path.stat()
        except OSError:  # a journal that was just turned into Parquet
            continue
        found.append((str(path), about.st_mtime, about.st_size))
    return sorted(found)
