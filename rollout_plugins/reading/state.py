"""Tell whether a run ended, is running, or was interrupted, in the words that lists and viewers show."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ENDED, RUNNING, NO_END = "ended", "running", "no end written"
FRESH_SECONDS = 600.0
"""A run without an end counts as running if its files changed within this time."""


def has_ended(attempts: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if every process of the run's last attempt recorded its end."""
    last_attempt = max((attempt.get("attempt", 1) for attempt in attempts), default=0)
    return bool(attempts) and all(
        attempt.get("ended") for attempt in attempts if attempt.get("attempt", 1) == last_attempt
    )


def state_of(attempts: Sequence[Mapping[str, Any]], changed: float) -> str:
    """Return the state of a run whose newest file changed at the Unix time `changed`."""
    if has_ended(attempts):
        return ENDED
    return RUNNING if time.time() - changed < FRESH_SECONDS else NO_END


def files_of(folder: Path) -> list[tuple[str, float, int]]:
    """Return path, modification time and size of each file of a run that recording or annotating changes."""
    files = []
    for path in [*folder.glob("run*.json"), *folder.glob("data/*/*"), *folder.glob("annotations/*/*")]:
        try:
            status = path.stat()
        except OSError:  # this journal was just turned into Parquet
            continue
        files.append((str(path), status.st_mtime, status.st_size))
    return sorted(files)
