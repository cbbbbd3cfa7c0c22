"""The sums of a run's parts: out of their footers, or computed from their rows, over all cores. Each part once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.parquet as pq

from rollout_plugins.content.elsewhere import is_elsewhere, opened
from rollout_plugins.errors import RunError
from rollout_plugins.store import sums
from rollout_plugins.store.parts import TYPES, UnreadableError, file_name, gist, wrong_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

#: Requests at once, for what takes time there is waiting.
_ELSEWHERE = 16
_Version: TypeAlias = "tuple[int, int]"


class PartSums:
    """What is known of one run's parts. Files that are sealed do not change, so it outlives a `refresh()`."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Version, bytes]] = {}

    def of(self, files: Sequence[Path], journals: Mapping[Path, pa.Table], *, whole: bool = True) -> sums.Sums:
        """The sums of these files, and of what these journals hold. See `sums.packed` for `whole`."""
        if not whole:
            made = _on_all_cores(_computed_apart, files)
            return sums.joined([*made, *(sums.packed(sums.lines(table), whole=False) for table in journals.values())])
        versions = {path: _version(path) for path in files}
        known = {path: self._known[path] for path in files if self._known.get(path, ("",))[0] == versions[path]}
        new = [path for path in files if path not in known]
        computed = zip(new, _on_all_cores(_found, new), strict=True)
        self._known = known = {**known, **{path: (versions[path], value) for path, value in computed}}
        live = [sums.packed(sums.lines(table)) for table in journals.values()]
        return sums.joined([*(known[path][1] for path in files), *live])


def _on_all_cores(function: Callable[[Path], bytes], files: Sequence[Path]) -> list[bytes]:
    away = any(is_elsewhere(path.parents[2]) for path in files)
    with ThreadPoolExecutor(_ELSEWHERE if away else min(os.cpu_count() or 1, 4)) as pool:
        return list(pool.map(function, files))


def _version(path: Path) -> _Version:
    try:
        about = path.stat()
    except OSError as error:
        raise UnreadableError(f"{file_name(path)}: {gist(error)}") from error
    return about.st_size, about.st_mtime_ns


def _found(path: Path) -> bytes:
    """Kept in the footer, or computed."""
    return _careful(path, lambda: sums.kept(path) or sums.packed(_lines(path)))


def _computed_apart(path: Path) -> bytes:
    return _careful(path, lambda: sums.packed(_lines(path), whole=False))


def _careful(path: Path, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (RunError, UnreadableError):
        raise
    except Exception as error:
        raise UnreadableError(f"{file_name(path)}: {gist(error)}") from error


def _lines(path: Path) -> pa.Table:
    with pq.ParquetFile(opened(path)) as file:
        if why := wrong_columns(file.schema_arrow, TYPES):
            raise UnreadableError(f"{file_name(path)}: {why}")
        return sums.lines(file.read(columns=sums.columns(file.schema_arrow.names), use_threads=False))
