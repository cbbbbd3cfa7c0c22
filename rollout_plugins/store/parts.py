"""The files of a run: finding them, and reading rows out of them without loading them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_plugins.store.schema import FIELDS, REWARD_PREFIX
from rollout_plugins.store.write import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

OPEN_FILES = 64
TYPES: dict[str, pa.DataType] = dict(FIELDS)


class UnreadableError(Exception):
    """The files could not be read; which one is for the caller to find out."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rollouts."""

    folder: Path
    """The run's."""
    path: Path
    split: str
    attempt: int
    rank: int

    @property
    def name(self) -> str:
        """Which file of the run it is: other splits have files of the same name."""
        return self.path.relative_to(self.folder).as_posix()

    @property
    def is_journal(self) -> bool:
        return self.path.suffix == ".arrows"

    @property
    def journal(self) -> Part:
        """The journal this Parquet file was made of; usually removed."""
        return Part(self.folder, self.path.with_suffix(".arrows"), self.split, self.attempt, self.rank)


def find_parts(folder: Path) -> list[Part]:
    """The parts of a run, in writing order; of a journal and the Parquet file made of it, the Parquet file."""
    found: dict[str, Part] = {}
    for path in sorted((folder / "data").glob("*/*.*")):
        numbers = path.stem.split("-")
        if path.suffix not in {".arrows", ".parquet"} or len(numbers) != 3:
            continue
        if all(number.isascii() and number.isdigit() for number in numbers):
            part = Part(folder, path, path.parent.name, int(numbers[0]), int(numbers[1]))
            found[f"{part.split}/{path.stem}"] = part  # sorted: .parquet comes after .arrows and wins
    return list(found.values())


def fault(part: Part, *, whole: bool = False) -> str:
    """What is wrong with a file: its footer and columns, or every page of it. Empty when nothing is, or it is gone."""
    try:
        if part.is_journal:
            found = read_journal(part.path).schema
        else:
            with pq.ParquetFile(part.path, memory_map=True) as file:
                found = file.schema_arrow
                for group in range(file.num_row_groups if whole else 0):
                    file.read_row_group(group)
    except FileNotFoundError:
        return ""
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return wrong_columns(found)


def wrong_columns(found: pa.Schema) -> str:
    """What keeps a file with these columns from being one of ours; empty when nothing does."""
    wrong = [name for name, kind in TYPES.items() if name in found.names and not _alike(found.field(name).type, kind)]
    if "id" not in found.names:
        return "it has no column id"
    return f"column {wrong[0]} is {found.field(wrong[0]).type}, not {TYPES[wrong[0]]}" if wrong else ""


def _alike(found: pa.DataType, kind: pa.DataType) -> bool:
    """Nested types are compared by kind alone: a later version may add to their fields."""
    if pa.types.is_nested(kind):
        return bool(pa.types.is_nested(found))
    text = {pa.string(), pa.large_string(), pa.string_view()}
    return found == kind or (kind in text and found in text)


class Rows:
    """Takes rows out of parts, a few at a time, decoding each file once as long as rows are asked for in its order."""

    def __init__(
        self, parts: Sequence[Part], tables: Mapping[Path, pa.Table], damaged: Mapping[Path, dict[str, str]]
    ) -> None:
        self._parts = parts
        self._tables = tables
        self._damaged = damaged
        self._open: OrderedDict[tuple[int, tuple[str, ...]], _Cursor] = OrderedDict()

    def take(
        self, parts: Sequence[int], rows: Sequence[int], names: Sequence[str]
    ) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Tables of the rows, in the order asked for, with the places they stand for. Unreadable rows are left out."""
        chunk = _chunk(names)
        for start in range(0, len(parts), chunk):
            end = min(start + chunk, len(parts))
            found, places = [], []
            for number in dict.fromkeys(parts[start:end]):
                here = [place for place in range(start, end) if parts[place] == number]
                here.sort(key=rows.__getitem__)
                table = self._read(number, [rows[place] for place in here], tuple(names))
                if table is not None:
                    found.append(table)
                    places += here
            if found:
                table = pa.concat_tables(found, promote_options="permissive")
                order = pc.sort_indices(integers(places))
                yield integers(sorted(places)), table.take(order)

    def _read(self, number: int, rows: list[int], names: tuple[str, ...]) -> pa.Table | None:
        part = self._parts[number]
        try:
            held = self._tables.get(part.path)
            if held is None:
                table = self._cursor(number, names).take(rows)
            else:
                present = set(held.column_names)
                wanted = [name for name in stored_columns(names) if name in present]
                table = _rows_of(held.select(wanted), rows)
            return _with_columns(table, names)
        except Exception as error:
            self._open.pop((number, names), None)
            self._damaged[part.folder][part.name] = str(error).partition("\n")[0]
            return None

    def _cursor(self, number: int, names: tuple[str, ...]) -> _Cursor:
        key = (number, names)
        cursor = self._open.pop(key, None) or _Cursor(self._parts[number].path, names)
        self._open[key] = cursor
        if len(self._open) > OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return cursor


def _rows_of(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """These rows; without copying where they stand one after the other, as those of small files do."""
    if rows and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return table.slice(rows[0], len(rows))
    return table.take(integers(rows))


def _chunk(names: Sequence[str]) -> int:
    """Rows to have in memory at once: few of whole rollouts, many of mere numbers."""
    return 512 if any(pa.types.is_nested(TYPES.get(name, pa.float64())) for name in names) else 16384


class _Cursor:
    """Reads forward through one Parquet file; going back starts again at a row group."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._file = pq.ParquetFile(path, memory_map=True)
        present = set(self._file.schema_arrow.names)
        self._names = [name for name in stored_columns(names) if name in present]
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._starts = [sum(sizes[:group]) for group in range(len(sizes) + 1)]
        self._batches: Iterator[Any] = iter(())
        self._start = self._end = 0
        self._batch: Any = None

    def take(self, rows: Sequence[int]) -> pa.Table:
        slices, wanted = [], list(rows)
        while wanted:
            self._go_to(wanted[0])
            here = [row for row in wanted if row < self._end]
            slices.append(self._batch.take(integers([row - self._start for row in here])))
            wanted = wanted[len(here) :]
        return pa.Table.from_batches(slices)

    def _go_to(self, row: int) -> None:
        group = max(number for number, start in enumerate(self._starts[:-1]) if start <= row)
        if self._batch is None or row < self._start or self._starts[group] > self._end:
            groups = list(range(group, len(self._starts) - 1))
            self._batches = self._file.iter_batches(
                _chunk(self._names) // 2, row_groups=groups, columns=self._names, use_threads=False
            )
            self._end = self._starts[group]
            self._batch = None
        while self._batch is None or row >= self._end:
            self._batch = next(self._batches)
            self._start, self._end = self._end, self._end + self._batch.num_rows

    def close(self) -> None:
        self._file.close()


def _with_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Exactly these columns; nulls for those an older file does not have."""
    return pa.Table.from_arrays([_column(table, name) for name in names], names=list(names))


def _column(table: pa.Table, name: str) -> Any:
    if name.startswith(REWARD_PREFIX) and "rewards" in table.column_names:
        return _reward(table["rewards"].combine_chunks(), name.removeprefix(REWARD_PREFIX))
    kind = TYPES.get(name, pa.float64())
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    found = table[name]
    return found if pa.types.is_nested(kind) or found.type == kind else found.cast(kind)


def _reward(rewards: Any, name: str) -> Any:
    """What one function gave each rollout."""
    pairs, rows = rewards.flatten(), pc.list_parent_indices(rewards)
    named = pc.equal(pc.struct_field(pairs, "name"), name)
    places = pc.index_in(integers(range(len(rewards))), value_set=rows.filter(named).cast(pa.int64()))
    return pc.struct_field(pairs, "value").filter(named).take(places)


def stored_columns(names: Iterable[str]) -> list[str]:
    """The columns of the files that these are read from."""
    return list(dict.fromkeys("rewards" if name.startswith(REWARD_PREFIX) else name for name in names))


def integers(numbers: Iterable[int]) -> pa.Array:
    """Whole numbers as Arrow has them; `pa.array` would import pandas, which takes longer than most questions."""
    values = array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
