"""Find the files of rollouts in a run's folder."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from rollout_plugins.store.joined_parts import read_joined_parts, remove_contained_parts
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


_NAME = re.compile(r"([0-9]+-[0-9]+-[0-9]+)\.(?:arrows|parquet)")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rollouts: a Parquet file or a journal."""

    folder: Path
    """The run's folder."""
    path: Path

    @property
    def name(self) -> str:
        return file_name(self.path)

    @property
    def is_journal(self) -> bool:
        return self.path.suffix == ".arrows"

    @property
    def journal(self) -> Part:
        """The journal from which this Parquet file was made; it is usually removed."""
        return Part(self.folder, self.path.with_suffix(".arrows"))


def find_parts(folder: Path) -> list[Part]:
    """Return the parts of a run in writing order. A sealed journal that still exists does not count."""
    return [Part(folder, path) for node in nodes_of(folder) for path in _paths(node)]


def _paths(node: Path) -> list[Path]:
    paths = _list(node)
    while _has_unseen(node, set(map(file_name, paths))) and (again := _list(node)) != paths:
        paths = again
    kept = remove_contained_parts(node, set(map(file_name, paths)))
    return [path for path in paths if file_name(path) in kept]


def _has_unseen(node: Path, names: Collection[str]) -> bool:
    """Return True if a joined part appeared while the folder was being listed, so that parts may be missing."""
    return any(name not in names and (node / name).exists() for name in read_joined_parts(node))


def _list(node: Path) -> list[Path]:
    found: list[Path] = []
    for split in sorted((node / "data").glob("*")):
        with suppress(OSError):  # not a folder
            there = sorted(split.iterdir(), key=attrgetter("name"))  # .parquet sorts after .arrows and replaces it
            found += {match[1]: path for path in there if (match := _NAME.fullmatch(path.name))}.values()
    return found


def file_name(path: Path) -> str:
    """Return a file's path in its run, because splits and producers have files of the same name."""
    return "/".join(path.parts[-3:])
