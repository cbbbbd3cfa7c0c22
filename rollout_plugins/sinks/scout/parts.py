"""Parquet files that appear at once and stay few."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger("rollout_plugins")

SMALL = 64
MERGE_BYTES = 512 * 2**20
_NAME = re.compile(r"(\d+-[0-9a-f]+)-(\d+)(?:-(\d+))?\.parquet")


class Parts:
    """A file for every table added; when there are many, one file of them all. Each is whole or not there.

    `<rank>-<writer>-<number>.parquet` holds one table, `<rank>-<writer>-<first>-<last>.parquet` those of that range;
    the writer is a random word, so that others may write into the folder too. Between the writing of the latter and
    the removal of the former a reader may see a row twice; it never misses one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = f"{rank:04d}-{secrets.token_hex(4)}"
        self._small: dict[int, Path] = {}
        self._next = 0
        self._rows: dict[Path, int] = {}
        self._gone = 0
        _remove_merged(folder)

    def gone(self) -> int:
        """How many rows were in files that somebody else removed since this was last asked."""
        self._look()
        gone, self._gone = self._gone, 0
        return gone

    def _look(self) -> None:
        for path in [path for path in self._rows if not path.exists()]:
            self._gone += self._rows.pop(path)

    def add(self, table: Any) -> None:
        self._look()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._prefix}-{self._next:08d}.parquet"
        _write(table, path)
        self._small[self._next], self._rows[path] = path, table.num_rows
        self._next += 1
        if len(self._small) >= SMALL:
            self.merge()

    def merge(self) -> None:
        """Fewer files, if possible; the rows are there in any case."""
        try:
            self._merge()
        except Exception as error:
            logger.warning("the files in %s stay as they are, for merging them failed: %r", self._folder, error)
            self._small = {}

    def _merge(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._small = {number: path for number, path in self._small.items() if path.exists()}
        if len(self._small) < 2 or sum(path.stat().st_size for path in self._small.values()) > MERGE_BYTES:
            self._small = {} if len(self._small) >= SMALL else self._small
            return
        whole = pa.concat_tables([pq.read_table(path, partitioning=None) for path in self._small.values()])
        merged = self._folder / f"{self._prefix}-{min(self._small):08d}-{max(self._small):08d}.parquet"
        _write(whole, merged)
        self._rows[merged] = whole.num_rows
        for path in self._small.values():
            self._rows.pop(path, None)
            path.unlink(missing_ok=True)
        self._small = {}


def column_of(folder: Path, name: str) -> Iterator[Any]:
    """The values of one column in all files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in folder.glob("*.parquet"):
        try:
            table = pq.read_table(path, columns=[name], partitioning=None)
        except (OSError, pa.ArrowException) as error:  # it may have been merged away just now
            logger.warning("%s cannot be read: %s", path, error)
            continue
        yield from table[name].to_pylist()


def _remove_merged(folder: Path) -> None:
    """What a writer that was killed while it merged has left: small files that are in a merged one too."""
    found = [(path, match.groups()) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    merged = [(writer, int(first), int(last)) for _, (writer, first, last) in found if last is not None]
    for path, (writer, number, last) in found:
        if last is None and any(writer == w and first <= int(number) <= end for w, first, end in merged):
            path.unlink(missing_ok=True)


def _write(table: Any, path: Path) -> None:
    import pyarrow.parquet as pq

    unfinished = path.with_suffix(".tmp")
    try:
        pq.write_table(table, unfinished, compression="zstd")
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
