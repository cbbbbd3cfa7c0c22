"""Parquet files that appear at once and stay few."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

SMALL = 64
MERGE_BYTES = 512 * 2**20


class Parts:
    """A file for every table added; when there are many, one file of them all. Each is whole or not there.

    `<rank>-<number>.parquet` holds one table, `<rank>-<first>-<last>.parquet` those of that range. Between the writing
    of the latter and the removal of the former a reader may see a row twice; it never misses one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = f"{rank:04d}"
        self._pattern = re.compile(rf"{self._prefix}-(\d+)(?:-(\d+))?\.parquet")
        merged, small = self._found()
        for number, path in list(small.items()):
            if any(first <= number <= last for first, last in merged):
                path.unlink(missing_ok=True)
                del small[number]
        self._small = small
        self._next = 1 + max([-1, *small, *(last for _, last in merged)])

    def _found(self) -> tuple[list[tuple[int, int]], dict[int, Path]]:
        merged: list[tuple[int, int]] = []
        small: dict[int, Path] = {}
        for path in sorted(self._folder.iterdir()):
            if match := self._pattern.fullmatch(path.name):
                first, last = match.groups()
                if last is None:
                    small[int(first)] = path
                else:
                    merged.append((int(first), int(last)))
        return merged, small

    def add(self, table: Any) -> None:
        path = self._folder / f"{self._prefix}-{self._next:08d}.parquet"
        _write(table, path)
        self._small[self._next] = path
        self._next += 1
        if len(self._small) >= SMALL:
            self.merge()

    def merge(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if len(self._small) < 2 or sum(path.stat().st_size for path in self._small.values()) > MERGE_BYTES:
            self._small = {} if len(self._small) >= SMALL else self._small
            return
        whole = pa.concat_tables([pq.read_table(path, partitioning=None) for path in self._small.values()])
        _write(whole, self._folder / f"{self._prefix}-{min(self._small):08d}-{max(self._small):08d}.parquet")
        for path in self._small.values():
            path.unlink(missing_ok=True)
        self._small = {}


def _write(table: Any, path: Path) -> None:
    import pyarrow.parquet as pq

    unfinished = path.with_suffix(".tmp")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)
