"""Choose the folder of a trainer's runs.

It is beside the output_dir and not inside, because the Hub and trackers upload the whole output_dir.
"""

from __future__ import annotations

import os
from pathlib import Path


def home_of(output_dir: str | os.PathLike[str]) -> Path:
    """Return `<output_dir>-rollouts`, or if only the output_dir survives, a folder in it that `push_to_hub` skips."""
    beside, inside, _ = homes_of(output_dir)
    return beside if _lasts_beside(Path(os.path.realpath(output_dir))) else inside


def homes_of(output_dir: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Return every folder where a trainer's runs may be; the last has older and imported ones."""
    folder = Path(os.path.realpath(output_dir))  # the output_dir may be a link to another disk
    inside = folder / "_rollouts"
    return folder.with_name(f"{folder.name}-rollouts") if folder.name else inside, inside, folder / "rollouts"


def _lasts_beside(folder: Path) -> bool:
    """Return True if the parent folder is writable and not on a container's own disk, which is temporary."""
    parent = next(parent for parent in (folder.parent, *folder.parent.parents) if parent.is_dir())
    is_one_disk = not folder.exists() or folder.stat().st_dev == parent.stat().st_dev
    return bool(folder.name) and is_one_disk and os.access(parent, os.W_OK | os.X_OK)
