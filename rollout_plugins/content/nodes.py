"""A run of several nodes without a shared disk: one folder stands for theirs, and holds only their names."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_NOTE = ".nodes.json"


def root() -> Path:
    """Where the folders are that stand for others."""
    chosen, caches = os.environ.get("ROLLOUTS_CACHE"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or f"{caches}/rollout-plugins").expanduser()


def nodes_of(folder: Path) -> list[Path]:
    """The folders that a run's files are in: its own, or those of its nodes."""
    with suppress(OSError):
        return [Path(name) for name in json.loads((folder / _NOTE).read_text(encoding="utf-8"))]
    return [folder]


def is_joined(folder: Path) -> bool:
    """Whether a folder stands for those of several nodes."""
    return (folder / _NOTE).is_file()


def join(run: str, folders: Sequence[Path]) -> Path:
    """The folder that stands for these, of one run."""
    text = json.dumps([str(folder.resolve()) for folder in folders])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    joined = root().joinpath("nodes", digest, *folders[0].resolve().parts[-3:-1], run)  # named as the run's folder is
    if not is_joined(joined):
        joined.mkdir(parents=True, exist_ok=True)
        (joined / _NOTE).write_text(text, encoding="utf-8")
    return joined
