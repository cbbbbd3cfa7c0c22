"""Runs that are not on this machine: a folder here stands for each, and holds what of it was looked at.

Such a folder has a file `.elsewhere`. How to reach what is not here yet is known to whoever is named in the entry
points `rollout_plugins.places`; the rest of us read and ask it for what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from rollout_plugins.errors import SetupError
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import nodes_of

GROUP = "rollout_plugins.places"
MARK = ".elsewhere"
SCHEME = "elsewhere"
"""By which DuckDB knows files that stand for others: `elsewhere:///a/path/here`."""


class RemoteReader(Protocol):
    """Reaches runs elsewhere. Raises `RunError` when a place cannot be reached, with what to do."""

    def find(self, url: str) -> Sequence[Path]:
        """Folders here that stand for the runs at or below a URL, with their run files."""

    def refresh(self, folder: Path) -> None:
        """Look again at what there is; files have their names and sizes then, and small ones are here."""

    def name(self, folder: Path) -> str:
        """The URL that a folder stands for."""

    def opened(self, file: Path) -> Any:
        """An open file that is read from there piece by piece."""

    def fetch(self, files: Sequence[Path], columns: Collection[str]) -> None:
        """Get some columns of Parquet files, many at once, before they are asked for one after the other."""

    def bring(self, folder: Path, name: str) -> None:
        """Copy one file of a run here, whole, if it is there."""

    def send(self, file: Path) -> None:
        """Copy a file that was written here to where the run is."""

    def arrow(self, urls: Sequence[str]) -> tuple[Any, list[str]]:
        """PyArrow's filesystem for URLs of one place, and their paths in it."""

    def filesystem(self) -> Any:
        """An fsspec filesystem of protocol `elsewhere` over the files that stand for others."""


def is_url(path: object) -> bool:
    """Whether this is a URL, and not a path; also one that a `Path` has taken a slash from."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    return re.match(r"([\w+.-]+::)*[A-Za-z][\w+.-]+:/", os.fspath(path)) is not None


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path of this machine, from the home folder where it begins with `~`."""
    with suppress(RuntimeError):  # nobody has that home: it is the name of a folder
        return Path(path).expanduser()
    return Path(path)


@cache
def remote_reader() -> RemoteReader:
    """Who knows how to reach runs elsewhere."""
    for entry in entry_points(group=GROUP):
        known: RemoteReader = entry.load()
        return known
    raise SetupError("runs at a URL cannot be opened: rollout-plugins is installed without its part for them")


def is_remote(folder: Path) -> bool:
    """Whether a folder stands for a run elsewhere."""
    return _is_marked(str(folder))


def is_remote_file(file: Path) -> bool:
    """Whether a file of rollouts or annotations stands for one elsewhere."""
    return _is_marked(str(file).rsplit(os.sep, 3)[0])  # asked for thousands, of which a `Path` takes its time


@cache
def _is_marked(folder: str) -> bool:
    return Path(folder, MARK).is_file()


def display_place(folder: Path) -> str:
    """What a person calls the place where a run is: its folder, or its URL; of several nodes, the first one's."""
    first, *others = nodes_of(folder)
    name = remote_reader().name(first) if is_remote(first) else str(first)
    return f"{name} and {count(len(others), 'other folder')}" if others else name


def public_path(file: Path) -> Path | str:
    """What others find a rollout file by: its path here, or its URL."""
    return f"{display_place(file.parents[2])}/{'/'.join(file.parts[-3:])}" if is_remote_file(file) else file


def duckdb_path(file: Path) -> str:
    """A rollout file's name for DuckDB."""
    return f"{SCHEME}://{file}" if is_remote_file(file) else str(file)


def open_run_file(file: Path) -> Any:
    """What PyArrow opens for a rollout file: its path here, or what reads it from there."""
    return remote_reader().opened(file) if is_remote_file(file) else file
