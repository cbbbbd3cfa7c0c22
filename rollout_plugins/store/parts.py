"""The files of rollouts in a run's folder."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from rollout_plugins.store.joined_parts import joined, without_joined
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


_NAME = re.compile(r"([0-9]+-[0-9]+-[0-9]+)\.(?:arrows|parquet)")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rollouts."""

    folder: Path
    """The run's."""
    path: Path

    @property
    def name(self) -> str:
        return file_name(self.path)

    @property
    def is_journal(self) -> bool:
        return self.path.suffix == ".arrows"

    @property
    def journal(self) -> Part:
        """The journal this Parquet file was made of; usually removed."""
        return Part(self.folder, self.path.with_suffix(".arrows"))


def find_parts(folder: Path) -> list[Part]:
    """The parts of a run, in writing order; of a journal and the Parquet file made of it, the Parquet file."""
    return [Part(folder, path) for node in nodes_of(folder) for path in _paths(node)]


def _paths(node: Path) -> list[Path]:
    paths = _list(node)
    while _has_unseen(node, set(map(file_name, paths))) and (again := _list(node)) != paths:
        paths = again
    kept = without_joined(node, set(map(file_name, paths)))
    return [path for path in paths if file_name(path) in kept]


def _has_unseen(node: Path, names: Collection[str]) -> bool:
    """Whether a joined part appeared while the folder was listed: parts that it holds may have gone unseen, too."""
    return any(name not in names and (node / name).exists() for name in joined(node))


def _list(node: Path) -> list[Path]:
    found: list[Path] = []
    for split in sorted((node / "data").glob("*")):
        with suppress(OSError):  # it is not a folder
            there = sorted(split.iterdir(), key=attrgetter("name"))  # .parquet comes after .arrows and wins
            found += {match[1]: path for path in there if (match := _NAME.fullmatch(path.name))}.values()
    return found


def file_name(path: Path) -> str:
    """What a file is called in its run: other splits and producers have files of the same name."""
    return "/".join(path.parts[-3:])
