"""Join small parts of a run into a larger one, safely against concurrent readers and a kill at any moment.

The footer of the joined part has the position of each part's rows, so that a reader that began with the small parts
can finish with the joined one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from rollout_plugins.store.any_version import with_columns
from rollout_plugins.store.joined_parts import read_joined_parts, record_joined_parts
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.store.write import part_writer, row_groups
from rollout_plugins.system.file_locks import hold_lock
from rollout_plugins.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

#: The footer key of a joined part: the name of each part in it, with its first row and number of rows.
POSITIONS_KEY = b"rollout_plugins.held"


class Location(NamedTuple):
    """The position of a part's rows in the file that it was joined into."""

    path: Path
    start: int
    rows: int


def join_parts(folder: Path, target: Path, parts: Sequence[Path]) -> None:
    """Write one part with the rows of several, then remove those.

    Raise an error and change nothing if a row is lost.
    """
    files = [pq.read_metadata(path) for path in parts]
    rows = sum(file.num_rows for file in files)
    metadata: dict[bytes, bytes] = {}
    for file in files:
        metadata.update(file.metadata or {})
    metadata.pop(b"ARROW:schema", None)
    held = json.dumps(_row_positions(parts, files)).encode()
    schema = SCHEMA.with_metadata({**metadata, **SCHEMA.metadata, POSITIONS_KEY: held})

    def write(path: Path) -> None:
        with part_writer(path, schema) as add:
            for table in row_groups(_batches(parts)):
                add(table)
        written = pq.read_metadata(path).num_rows
        if written != rows:
            raise OSError(f"{written:,} of {rows:,} rollouts arrived; nothing was changed")
        with hold_lock((folder / ".compacted").open("ab")):  # other ranks join their own parts at the same time
            record_joined_parts(folder, {file_name(target): [file_name(part) for part in parts]})

    replace_file(target, write)
    for part in parts:
        part.unlink(missing_ok=True)


def _row_positions(parts: Sequence[Path], files: Sequence[pq.FileMetaData]) -> dict[str, tuple[int, int]]:
    """Return the first row and number of rows of each part, also of parts that were joined into these before."""
    held: dict[str, tuple[int, int]] = {}
    start = 0
    for path, file in zip(parts, files, strict=True):
        for name, (first, rows) in _read_positions(file.metadata).items():
            held[name] = start + first, rows
        held[file_name(path)] = start, file.num_rows
        start += file.num_rows
    return held


def _read_positions(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[int, int]]:
    with suppress(ValueError, TypeError):
        noted = json.loads((metadata or {}).get(POSITIONS_KEY, b"{}"))
        return {str(name): (int(first), int(rows)) for name, (first, rows) in noted.items()}
    return {}


def _batches(parts: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with pq.ParquetFile(part) as file:
            for number in range(file.num_row_groups):
                table: Any = with_columns(file.read_row_group(number, use_threads=False), SCHEMA.names)
                yield from table.cast(SCHEMA).to_batches()


def locate(part: Path) -> Location | None:
    """Return where the rows of a joined part are, or None if no file holds them."""
    folder, name = part.parents[2], file_name(part)
    for target, parts in read_joined_parts(folder).items():
        if name in parts:
            with suppress(OSError):
                place = _read_positions(pq.read_metadata(folder / target).metadata).get(name)
                if place is not None:
                    return Location(folder / target, *place)
    return None


def remove_joined(folder: Path) -> None:
    """Remove parts that were joined by a process that was killed before it removed them."""
    for name, parts in read_joined_parts(folder).items():
        if (folder / name).exists():
            for part in parts:
                (folder / part).unlink(missing_ok=True)
