"""Where a trainer's runs are kept: next to its output_dir, because the Hub and trackers upload that folder whole."""

from __future__ import annotations

import os
from pathlib import Path


def home_of(output_dir: str | os.PathLike[str]) -> Path:
    """`<output_dir>-rollouts`. Where only the output_dir lasts, a folder in it that `push_to_hub` leaves out."""
    beside, inside, _ = homes_of(output_dir)
    return beside if _lasts_beside(Path(os.path.realpath(output_dir))) else inside


def homes_of(output_dir: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Every place where a trainer's runs may be; the last one holds older ones, and imported ones."""
    folder = Path(os.path.realpath(output_dir))  # a link often leads to another disk
    inside = folder / "_rollouts"
    return folder.with_name(f"{folder.name}-rollouts") if folder.name else inside, inside, folder / "rollouts"


def _lasts_beside(folder: Path) -> bool:
    """Whether we may write next to it, and that is not a container's own disk, which is gone with the container."""
    parent = next(parent for parent in (folder.parent, *folder.parent.parents) if parent.is_dir())
    is_one_disk = not folder.exists() or folder.stat().st_dev == parent.stat().st_dev
    return bool(folder.name) and is_one_disk and os.access(parent, os.W_OK | os.X_OK)
