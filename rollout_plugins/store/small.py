"""Runs of thousands of small files: each is opened once, not again for every question.

What people filter, sort and count by is read when the run is opened, whole rollouts when the first of them is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rollout_plugins.store.parts import Part, UnreadableError
from rollout_plugins.store.schema import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

#: With fewer files than this, opening them takes no noticeable time.
MANY = 64
#: Files up to this size are small; some 16 kB of each are the description of its columns.
SMALL_BYTES = 256 * 2**10
FOOTER_BYTES = 16 * 2**10
#: What is kept in memory of a run, as it is on disk; some ten times that in memory.
MOST_BYTES = 32 * 2**20
#: The columns that are read when the run is opened.
LIGHT = tuple(
    name
    for name, kind in FIELDS
    if name not in {"columns", "extra", "marks", "rendered", "rest"}
    and (name == "rewards" or not pa.types.is_nested(kind))
)
HEAVY = tuple(name for name, _ in FIELDS if name not in LIGHT)


def small_parts(parts: Sequence[Part]) -> list[Part]:
    """The small ones of many Parquet files; none when there are few."""
    files = [part for part in parts if not part.is_journal]
    if len(files) < MANY:
        return []
    chosen, left = [], MOST_BYTES
    for part in files:
        size = part.path.stat().st_size
        if size <= SMALL_BYTES and (left := left - max(size - FOOTER_BYTES, 0)) >= 0:
            chosen.append(part)
    return chosen


class Held(Mapping[Path, pa.Table]):
    """Files that are in memory: journals from the beginning, small Parquet files once one of them is asked for."""

    def __init__(
        self, journals: Mapping[Path, pa.Table], small: Sequence[Path], read: Callable[[Sequence[Path]], pa.Table]
    ) -> None:
        self._tables = dict(journals)
        self._waiting = frozenset(small)
        self._read = read

    def __getitem__(self, path: Path) -> pa.Table:
        if path in self._waiting:
            waiting, self._waiting = sorted(self._waiting), frozenset()
            with suppress(UnreadableError):  # one of them is damaged: each is read from its file, and that one named
                self._tables.update(_by_file(self._read(waiting)))
        return self._tables[path]

    def __iter__(self) -> Iterator[Path]:
        return iter({*self._tables, *self._waiting})

    def __len__(self) -> int:
        return len({*self._tables, *self._waiting})


def _by_file(table: pa.Table) -> dict[Path, pa.Table]:
    """A table of whole files, one after the other, as a table for each."""
    start, found = 0, {}
    for name, rows in groupby(table["filename"].to_pylist()):
        count = sum(1 for _ in rows)
        found[Path(name)] = table.slice(start, count)
        start += count
    return found
