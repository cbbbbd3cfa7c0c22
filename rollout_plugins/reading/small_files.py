"""The small Parquet files of a run that has many: opening one takes longer than reading it, so each is read once.

Numbers and names of all of them are in memory from the first question on, and whole rollouts from when they are asked
for; both up to a limit. Files that are sealed never change, so what was read outlives a `refresh()` of the run.
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

#: With fewer files than this, opening them takes no noticeable time.
MANY = 64
#: Files up to this size are small; some 16 kB of each are the description of its columns.
SMALL_BYTES = 256 * 2**10
#: What is kept in memory of numbers and names, and of whole rollouts, each.
MOST_BYTES = 256 * 2**20
AT_ONCE = 512

Read: TypeAlias = "Callable[[Sequence[Path]], pa.Table]"
_Sizes: TypeAlias = "dict[Path, tuple[int, int]]"


class SmallFiles:
    """What is in memory of one run's small files."""

    def __init__(self) -> None:
        self._sizes: _Sizes = {}
        self._light: list[tuple[_Sizes, pa.Table]] = []
        self._whole: dict[Path, pa.Table] = {}
        self._reads: tuple[tuple[int, Sequence[Path]], ...] = ()

    def light(self, files: Sequence[Path], read: Read) -> list[tuple[Sequence[Path], pa.Table]]:
        """Numbers and names of the rollouts in those of the files that are small.

        `_file` is the place in the list of files that comes with a table. Files that are not what they were are read
        again. Several threads may ask.
        """
        before, self._sizes = self._sizes, _small(files)
        if not _are_among(before, sizes := self._sizes):
            self._whole, self._reads = {}, ()
        found = [(known, table) for known, table in self._light if _are_among(known, sizes)]
        known = {path for files, _ in found for path in files}
        new = [path for path in sizes if path not in known]
        for start in range(0, len(new), AT_ONCE):
            if sum(table.nbytes for _, table in found) > MOST_BYTES:
                break
            some = {path: sizes[path] for path in new[start : start + AT_ONCE]}
            found.append((some, _placed(read(list(some)), list(some))))
        self._light = found
        return [(list(known), table) for known, table in found]

    def whole(self, files: Sequence[Path], read: Read) -> Mapping[Path, pa.Table]:
        """The rollouts of those that are in memory; several that are not are read now."""
        missing = [path for path in files if path in self._sizes and path not in self._whole]
        if len(missing) > 1:
            with suppress(UnreadableError):  # one of them is damaged: each is read from its file, and that one named
                self._keep(read(missing))
        return {path: table for path in files if (table := self._whole.get(path)) is not None}

    def _keep(self, table: pa.Table) -> None:
        found = _by_file(table)
        self._whole.update(found)
        reads = (*self._reads, (table.nbytes, list(found)))
        while len(reads) > 1 and sum(size for size, _ in reads) > MOST_BYTES:
            for path in reads[0][1]:
                self._whole.pop(path, None)
            reads = reads[1:]
        self._reads = reads  # at once, too


def _small(files: Sequence[Path]) -> _Sizes:
    """The small ones of many files, with what tells whether they have changed; none when there are few."""
    if len(files) < MANY:
        return {}
    found = {}
    for path in files:
        with suppress(FileNotFoundError):  # the database will say so
            about = path.stat()
            if about.st_size <= SMALL_BYTES:
                found[path] = about.st_size, about.st_mtime_ns
    return found


def _are_among(files: _Sizes, others: _Sizes) -> bool:
    """Whether all of them are there as they were."""
    return all(others.get(path) == size for path, size in files.items())


def _placed(table: pa.Table, files: Sequence[Path]) -> pa.Table:
    """With the place of its file beside each row, instead of the file's name."""
    places = {duckdb_path(path): place for place, path in enumerate(files)}
    names = table["filename"].combine_chunks().dictionary_encode()
    place = integers(places[name] for name in names.dictionary.to_pylist()).take(names.indices)
    return table.drop_columns(["filename"]).append_column("_file", place).combine_chunks()


def _by_file(table: pa.Table) -> dict[Path, pa.Table]:
    """A table of whole files, one after the other, as a table for each."""
    start, found = 0, {}
    for name, rows in groupby(table["filename"].to_pylist()):
        count = sum(1 for _ in rows)
        found[Path(name.removeprefix(f"{SCHEME}://"))] = table.slice(start, count)
        start += count
    return found
