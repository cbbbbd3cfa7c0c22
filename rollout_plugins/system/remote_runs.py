"""Open runs in a bucket or on the Hub through a local folder that stands for each and caches what was read.

Such a folder has a file `.elsewhere`. The entry point `rollout_plugins.places` names the reader that fetches what is
missing.
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
"""URL scheme of these files for DuckDB: `elsewhere:///a/local/path`."""


class RemoteReader(Protocol):
    """Reads and writes remote runs. Raises `RunError`, with the fix, if a place cannot be reached."""

    def find(self, url: str) -> Sequence[Path]:
        """Return local folders for the runs at or below a URL, with their run files."""

    def refresh(self, folder: Path) -> None:
        """List the remote files again; afterwards all files have their names and sizes, and small ones are local."""

    def name(self, folder: Path) -> str:
        """Return the URL of the run for which a folder stands."""

    def opened(self, file: Path) -> Any:
        """Open a remote file, which is read piece by piece."""

    def fetch(self, files: Sequence[Path], columns: Collection[str]) -> None:
        """Fetch some columns of many Parquet files concurrently, before they are read one by one."""

    def bring(self, folder: Path, name: str) -> None:
        """Copy one file of a run to its local folder, if it exists."""

    def send(self, file: Path) -> None:
        """Copy a local file to the remote run."""

    def arrow(self, urls: Sequence[str]) -> tuple[Any, list[str]]:
        """Return PyArrow's filesystem for URLs of one place, and the paths of the URLs in it."""

    def filesystem(self) -> Any:
        """Return an fsspec filesystem of protocol `elsewhere` over the remote files."""


def is_url(path: object) -> bool:
    """Return whether this is a URL and not a path, even if a `Path` has removed one of its slashes."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    return re.match(r"([\w+.-]+::)*[A-Za-z][\w+.-]+:/", os.fspath(path)) is not None


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path of this machine, with `~` replaced by the home folder."""
    with suppress(RuntimeError):  # no such user: `~name` is a folder's name
        return Path(path).expanduser()
    return Path(path)


@cache
def remote_reader() -> RemoteReader:
    """Return the installed reader of remote runs."""
    for entry in entry_points(group=GROUP):
        reader: RemoteReader = entry.load()
        return reader
    raise SetupError(
        "runs at a URL cannot be opened: this installation of rollout-plugins lacks the part `remote`; reinstall it"
    )


def is_remote(folder: Path) -> bool:
    """Return whether a folder stands for a remote run."""
    return _is_marked(str(folder))


def is_remote_file(file: Path) -> bool:
    """Return whether a file of rollouts or annotations stands for a remote one."""
    return _is_marked(str(file).rsplit(os.sep, 3)[0])  # a `Path` would be slow for thousands of files


@cache
def _is_marked(folder: str) -> bool:
    return Path(folder, MARK).is_file()


def display_place(folder: Path) -> str:
    """Return the run's folder or URL for people; for several nodes, the first one's and the number of the others."""
    first, *others = nodes_of(folder)
    name = remote_reader().name(first) if is_remote(first) else str(first)
    return f"{name} and {count(len(others), 'other folder')}" if others else name


def public_path(file: Path) -> Path | str:
    """Return how other programs find a rollout file: its local path, or its URL."""
    return f"{display_place(file.parents[2])}/{'/'.join(file.parts[-3:])}" if is_remote_file(file) else file


def duckdb_path(file: Path) -> str:
    """Return a rollout file's path or URL for DuckDB."""
    return f"{SCHEME}://{file}" if is_remote_file(file) else str(file)


def open_run_file(file: Path) -> Any:
    """Return what PyArrow reads for a rollout file: its local path, or an open remote file."""
    return remote_reader().opened(file) if is_remote_file(file) else file
