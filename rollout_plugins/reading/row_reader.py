"""Read single rows from the files of a run, a few at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import first_line
from rollout_plugins.store.any_version import integers, with_columns
from rollout_plugins.store.join_parts import locate
from rollout_plugins.store.parts import Part
from rollout_plugins.store.schema import REWARD_PREFIX, TYPES
from rollout_plugins.system.remote_runs import open_run_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_plugins.store.join_parts import Location

OPEN_FILES = 64


class Rows:
    """Reads rows of parts. A file is decoded only once while its rows are requested in order."""

    def __init__(
        self,
        parts: Sequence[Part],
        in_memory: Callable[[Sequence[Path]], Mapping[Path, pa.Table]],
        damaged: Mapping[Path, dict[str, str]],
    ) -> None:
        """`in_memory`: returns the tables of those files that are in memory."""
        self._parts = parts
        self._in_memory = in_memory
        self._damaged = damaged
        self._located: dict[int, Location] = {}
        self._open: OrderedDict[tuple[Path, tuple[str, ...]], _Cursor] = OrderedDict()

    def take(
        self, parts: Sequence[int], rows: Sequence[int], names: Sequence[str]
    ) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Yield tables of rows in the requested order, with the positions of their rows.

        Unreadable rows are left out.
        """
        try:
            yield from self._take(parts, rows, names)
        finally:
            for key in list(self._open):
                self._close(key)

    def _take(
        self, parts: Sequence[int], rows: Sequence[int], names: Sequence[str]
    ) -> Iterator[tuple[pa.Array, pa.Table]]:
        chunk = _chunk(names)
        for start in range(0, len(parts), chunk):
            end = min(start + chunk, len(parts))
            tables, all_positions = [], []
            numbers = dict.fromkeys(parts[start:end])
            tables_in_memory = self._in_memory([self._parts[number].path for number in numbers])
            for number in numbers:
                positions = [position for position in range(start, end) if parts[position] == number]
                positions.sort(key=rows.__getitem__)
                table_in_memory = tables_in_memory.get(self._parts[number].path)
                table = self._read(number, [rows[position] for position in positions], tuple(names), table_in_memory)
                if end == len(parts) and number not in self._located:
                    # No more rows of this file are needed, and its decoded pages take megabytes.
                    self._close((self._parts[number].path, tuple(names)))
                if table is not None:
                    tables.append(table)
                    all_positions += positions
            if tables:
                table = pa.concat_tables(tables, promote_options="permissive")
                order = pc.sort_indices(integers(all_positions))
                yield integers(sorted(all_positions)), table.take(order)

    def _read(
        self, number: int, rows: list[int], names: tuple[str, ...], table_in_memory: pa.Table | None
    ) -> pa.Table | None:
        part = self._parts[number]
        try:
            if table_in_memory is None:
                table = self._from_file(number, rows, names)
            else:
                table = _rows_of(table_in_memory.select(_stored(names, table_in_memory.column_names)), rows)
            return with_columns(table, names)
        except RunError:
            raise
        except Exception as error:
            self._close((self._place(number)[0], names))
            self._damaged[part.folder][part.name] = first_line(error)
            return None

    def _from_file(self, number: int, rows: Sequence[int], names: tuple[str, ...]) -> pa.Table:
        """Read rows of a part, or of the file that it was joined into; that file may have been joined again."""
        while True:
            path, start = self._place(number)
            try:
                return self._cursor(path, names).take([start + row for row in rows])
            except FileNotFoundError:
                location = locate(self._parts[number].path)
                if location is None or location.path == path:
                    raise
                self._located[number] = location

    def _place(self, number: int) -> tuple[Path, int]:
        """Return the file that has a part's rows, and the index of the first of them."""
        location = self._located.get(number)
        return (self._parts[number].path, 0) if location is None else (location.path, location.start)

    def _cursor(self, path: Path, names: tuple[str, ...]) -> _Cursor:
        key = (path, names)
        cursor = self._open.pop(key, None) or _Cursor(path, names)
        self._open[key] = cursor
        if len(self._open) > OPEN_FILES:
            self._close(next(iter(self._open)))
        return cursor

    def _close(self, key: tuple[Path, tuple[str, ...]]) -> None:
        if cursor := self._open.pop(key, None):
            cursor.close()


def _rows_of(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """Return these rows of a table, without copying if they are consecutive."""
    if rows and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return table.slice(rows[0], len(rows))
    return table.take(integers(rows))


def _chunk(names: Sequence[str]) -> int:
    """Return how many rows to read at once: few complete rollouts, or many numbers."""
    return 512 if any(pa.types.is_nested(TYPES.get(name, pa.float64())) for name in names) else 16384


class _Cursor:
    """Reads forward through one Parquet file; reading an earlier row starts again at its row group."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._file = pq.ParquetFile(open_run_file(path), memory_map=True)
        self._names = _stored(names, self._file.schema_arrow.names)
        groups = map(self._file.metadata.row_group, range(self._file.num_row_groups))
        self._starts = list(accumulate((group.num_rows for group in groups), initial=0))
        self._batches: Iterator[Any] = iter(())
        self._start = self._end = 0
        self._batch: Any = None

    def take(self, rows: Sequence[int]) -> pa.Table:
        slices, remaining = [], list(rows)
        while remaining:
            self._go_to(remaining[0])
            group_rows = [row for row in remaining if row < self._end]
            slices.append(self._batch.take(integers([row - self._start for row in group_rows])))
            remaining = remaining[len(group_rows) :]
        return pa.Table.from_batches(slices)

    def _go_to(self, row: int) -> None:
        group = max(number for number, start in enumerate(self._starts[:-1]) if start <= row)
        if self._batch is None or row < self._start or self._starts[group] > self._end:
            groups = range(group, len(self._starts) - 1)
            self._batches = chain.from_iterable(map(self._group, groups))  # Arrow would read all groups at once
            self._end = self._starts[group]
            self._batch = None
        while self._batch is None or row >= self._end:
            self._batch = next(self._batches)
            self._start, self._end = self._end, self._end + self._batch.num_rows

    def _group(self, group: int) -> Iterator[Any]:
        size, names = _chunk(self._names) // 2, self._names
        batches: Iterator[Any] = self._file.iter_batches(size, row_groups=[group], columns=names, use_threads=False)
        return batches

    def close(self) -> None:
        """Close the file now. Its iterator refers to the cursor, so it would otherwise wait for garbage collection."""
        self._batches, self._batch = iter(()), None
        self._file.close()


def _stored(names: Sequence[str], present: Iterable[str]) -> list[str]:
    """Return the columns of a file that are needed to compute `names`."""
    sources = dict.fromkeys("rewards" if name.startswith(REWARD_PREFIX) else name for name in names)
    available = set(present)
    return [name for name in sources if name in available]
