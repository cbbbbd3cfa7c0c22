"""Keep the small Parquet files of a run in memory if it has many: opening one takes longer than reading it.

Numbers and names of all rollouts are loaded by the first query, and complete rollouts when they are needed, both up to
a limit. Sealed files never change, so the content of this cache survives a `refresh()` of the run.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from rollout_plugins.reading.damage import UnreadableError
from rollout_plugins.store.any_version import integers
from rollout_plugins.system.remote_runs import SCHEME, duckdb_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: With fewer files, opening them all takes no noticeable time.
MANY = 64
#: The largest size of a small file; the descriptions of its columns alone take about 16 kB.
SMALL_BYTES = 256 * 2**10
#: The most bytes kept of numbers and names, and the most kept of complete rollouts.
MOST_BYTES = 256 * 2**20
AT_ONCE = 512

Read: TypeAlias = "Callable[[Sequence[Path]], pa.Table]"
_Sizes: TypeAlias = "dict[Path, tuple[int, int]]"


class SmallFiles:
    """A cache of one run's small files."""

    def __init__(self) -> None:
        self._sizes: _Sizes = {}
        self._light: list[tuple[_Sizes, pa.Table]] = []
        self._complete: dict[Path, pa.Table] = {}
        self._reads: tuple[tuple[int, Sequence[Path]], ...] = ()

    def light(self, files: Sequence[Path], read: Read) -> list[tuple[Sequence[Path], pa.Table]]:
        """Return tables of numbers and names of the small files among `files`.

        Each table comes with a list of its files, in which the column `_file` is an index. Changed files are read
        again. Several threads may call this.
        """
        before, self._sizes = self._sizes, _small(files)
        if not _all_unchanged(before, sizes := self._sizes):
            self._complete, self._reads = {}, ()
        tables = [(files, table) for files, table in self._light if _all_unchanged(files, sizes)]
        cached = {path for sizes_of_table, _ in tables for path in sizes_of_table}
        new = [path for path in sizes if path not in cached]
        for start in range(0, len(new), AT_ONCE):
            if sum(table.nbytes for _, table in tables) > MOST_BYTES:
                break
            next_files = {path: sizes[path] for path in new[start : start + AT_ONCE]}
            tables.append((next_files, _with_file_index(read(list(next_files)), list(next_files))))
        self._light = tables
        return [(list(files), table) for files, table in tables]

    def complete_rollouts(self, files: Sequence[Path], read: Read) -> Mapping[Path, pa.Table]:
        """Return complete rollouts of the files in memory.

        If several small files are not in memory, they are read now.
        """
        missing = [path for path in files if path in self._sizes and path not in self._complete]
        if len(missing) > 1:
            with suppress(UnreadableError):  # one file is damaged: each is then read alone, which names it
                self._keep(read(missing))
        return {path: table for path in files if (table := self._complete.get(path)) is not None}

    def _keep(self, table: pa.Table) -> None:
        tables = _split_by_file(table)
        self._complete.update(tables)
        reads = (*self._reads, (table.nbytes, list(tables)))
        while len(reads) > 1 and sum(size for size, _ in reads) > MOST_BYTES:
            for path in reads[0][1]:
                self._complete.pop(path, None)
            reads = reads[1:]
        self._reads = reads  # replaced as a whole, for other threads


def _small(files: Sequence[Path]) -> _Sizes:
    """Return size and time of each small file, or nothing if there are few files."""
    if len(files) < MANY:
        return {}
    sizes = {}
    for path in files:
        with suppress(FileNotFoundError):  # the query reports it
            status = path.stat()
            if status.st_size <= SMALL_BYTES:
                sizes[path] = status.st_size, status.st_mtime_ns
    return sizes


def _all_unchanged(files: _Sizes, others: _Sizes) -> bool:
    """Return True if none of the files has changed."""
    return all(others.get(path) == size for path, size in files.items())


def _with_file_index(table: pa.Table, files: Sequence[Path]) -> pa.Table:
    """Replace the column `filename` by `_file`, the file's index in `files`."""
    places = {duckdb_path(path): place for place, path in enumerate(files)}
    names = table["filename"].combine_chunks().dictionary_encode()
    place = integers(places[name] for name in names.dictionary.to_pylist()).take(names.indices)
    return table.drop_columns(["filename"]).append_column("_file", place).combine_chunks()


def _split_by_file(table: pa.Table) -> dict[Path, pa.Table]:
    """Split a table of several files, which are contiguous, into a table for each."""
    start, tables = 0, {}
    for name, rows in groupby(table["filename"].to_pylist()):
        count = sum(1 for _ in rows)
        tables[Path(name.removeprefix(f"{SCHEME}://"))] = table.slice(start, count)
        start += count
    return tables
