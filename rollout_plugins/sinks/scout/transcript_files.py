"""Write Parquet files that appear complete, and merge them so that they stay few."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger("rollout_plugins")

MAX_SMALL_FILES = 64
MERGE_BYTES = 512 * 2**20
_NAME = re.compile(r"(\d+-[0-9a-f]+)-(\d+)(?:-(\d+))?\.parquet")


class TranscriptFiles:
    """The files of one writer in a folder: one file per table, merged into one file when there are many.

    `<rank>-<writer>-<number>.parquet` holds one table, `<rank>-<writer>-<first>-<last>.parquet` the tables of that
    range. The writer is a random word, so that several processes may write into one folder. While files are merged, a
    reader may see a row twice but never misses one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = f"{rank:04d}-{secrets.token_hex(4)}"
        self._small: dict[int, Path] = {}
        self._next = 0
        self._rows: dict[Path, int] = {}
        self._lost = 0
        _remove_merged(folder)

    def take_lost_rows(self) -> int:
        """Return how many rows were in files that others removed since the last call."""
        self._count_lost_rows()
        lost, self._lost = self._lost, 0
        return lost

    def _count_lost_rows(self) -> None:
        for path in [path for path in self._rows if not path.exists()]:
            self._lost += self._rows.pop(path)

    def add(self, table: Any) -> None:
        self._count_lost_rows()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._prefix}-{self._next:08d}.parquet"
        _write(table, path)
        self._small[self._next], self._rows[path] = path, table.num_rows
        self._next += 1
        if len(self._small) >= MAX_SMALL_FILES:
            self.merge()

    def merge(self) -> None:
        """Merge the files if possible. If that fails, they stay as they are."""
        try:
            self._merge()
        except Exception as error:
            logger.warning("Merging the files in %s failed, so they stay as they are: %r", self._folder, error)
            self._small = {}

    def _merge(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._small = {number: path for number, path in self._small.items() if path.exists()}
        if len(self._small) < 2 or sum(path.stat().st_size for path in self._small.values()) > MERGE_BYTES:
            self._small = {} if len(self._small) >= MAX_SMALL_FILES else self._small
            return
        table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in self._small.values()])
        merged = self._folder / f"{self._prefix}-{min(self._small):08d}-{max(self._small):08d}.parquet"
        _write(table, merged)
        self._rows[merged] = table.num_rows
        for path in self._small.values():
            self._rows.pop(path, None)
            path.unlink(missing_ok=True)
        self._small = {}


def read_column(folder: Path, name: str) -> Iterator[Any]:
    """Yield the values of one column in all files of the folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in folder.glob("*.parquet"):
        try:
            table = pq.read_table(path, columns=[name], partitioning=None)
        except (OSError, pa.ArrowException) as error:  # another process may have merged it meanwhile
            logger.warning("%s cannot be read: %s", path, error)
            continue
        yield from table[name].to_pylist()


def _remove_merged(folder: Path) -> None:
    """Remove small files that a merged file contains as well: a process was killed before it removed them."""
    matches = [(path, match.groups()) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    merged = [(writer, int(first), int(last)) for _, (writer, first, last) in matches if last is not None]
    for path, (writer, number, last) in matches:
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
