"""A run of several nodes without a shared disk: one folder stands for theirs, and holds only their names."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

NOTE = ".nodes.json"


def nodes_of(folder: Path) -> list[Path]:
    """The folders that a run's files are in: its own, or those of its nodes."""
    with suppress(OSError):
        return [Path(name) for name in json.loads((folder / NOTE).read_text(encoding="utf-8"))]
    return [folder]
