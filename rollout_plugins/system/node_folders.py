"""Find the folders of a run that several nodes recorded without a shared disk.

One folder stands for the run. It contains only a file with the names of the nodes' folders.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

NOTE = ".nodes.json"


def nodes_of(folder: Path) -> list[Path]:
    """Return the folders with the files of a run: its own folder, or those of its nodes."""
    with suppress(OSError):
        return [Path(name) for name in json.loads((folder / NOTE).read_text(encoding="utf-8"))]
    return [folder]
