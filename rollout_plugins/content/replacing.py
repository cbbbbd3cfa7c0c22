"""Files that others may be reading: they find the old one or the new one, whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from rollout_plugins.content.disks import to_disk


def replace_file(path: Path, write: Callable[[Path], object], *, sync: bool = True) -> None:
    """Write a file so that it is either the old one or the new one, whole; with `sync`, whenever the power goes."""
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        write(temporary)
        if sync:
            with temporary.open("rb+") as file:
                to_disk(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
