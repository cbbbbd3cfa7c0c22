"""Join small parts of a run into a larger one, whoever reads them meanwhile and whenever the process is killed.

The joined part says in its footer where the rows of each part begin in it, so that a reader that began with the small
parts can finish with the joined one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from rollout_plugins.store.any_version import with_columns
from rollout_plugins.store.joined_parts import joined, note_joined
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.store.write import part_writer, row_groups
from rollout_plugins.system.file_locks import hold_lock
from rollout_plugins.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

#: In a joined part's footer: the names of the parts it holds, each with its first row here and its number of rows.
HELD = b"rollout_plugins.held"


class Location(NamedTuple):
    """Where the rows of a part are, after it was joined into another one."""

    path: Path
    start: int
    rows: int


def join_parts(folder: Path, target: Path, parts: Sequence[Path]) -> None:
    """Write one part that holds the rows of these, and remove them. Raises, and changes nothing, if a row is lost."""
    files = [pq.read_metadata(path) for path in parts]
    rows = sum(file.num_rows for file in files)
    metadata: dict[bytes, bytes] = {}
    for file in files:
        metadata.update(file.metadata or {})
    metadata.pop(b"ARROW:schema", None)
    held = json.dumps(_held(parts, files)).encode()
    schema = SCHEMA.with_metadata({**metadata, **SCHEMA.metadata, HELD: held})

    def write(path: Path) -> None:
        with part_writer(path, schema) as add:
            for table in row_groups(_batches(parts)):
                add(table)
        written = pq.read_metadata(path).num_rows
        if written != rows:
            raise OSError(f"{written:,} of {rows:,} rollouts arrived; nothing was changed")
        with hold_lock((folder / ".compacted").open("ab")):  # other ranks join parts of theirs
            note_joined(folder, {file_name(target): [file_name(part) for part in parts]})

    replace_file(target, write)
    for part in parts:
        part.unlink(missing_ok=True)


def _held(parts: Sequence[Path], files: Sequence[pq.FileMetaData]) -> dict[str, tuple[int, int]]:
    """The first row and the number of rows of each part, and of those that were joined into them before."""
    held: dict[str, tuple[int, int]] = {}
    start = 0
    for path, file in zip(parts, files, strict=True):
        for name, (first, rows) in _read_held(file.metadata).items():
            held[name] = start + first, rows
        held[file_name(path)] = start, file.num_rows
        start += file.num_rows
    return held


def _read_held(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[int, int]]:
    with suppress(ValueError, TypeError):
        noted = json.loads((metadata or {}).get(HELD, b"{}"))
        return {str(name): (int(first), int(rows)) for name, (first, rows) in noted.items()}
    return {}


def _batches(parts: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with pq.ParquetFile(part) as file:
            for number in range(file.num_row_groups):
                table: Any = with_columns(file.read_row_group(number, use_threads=False), SCHEMA.names)
                yield from table.cast(SCHEMA).to_batches()


def locate(part: Path) -> Location | None:
    """Find the rows of a part that is gone because it was joined; None if no file says that it holds them."""
    folder, name = part.parents[2], file_name(part)
    for target, held in joined(folder).items():
        if name in held:
            with suppress(OSError):
                place = _read_held(pq.read_metadata(folder / target).metadata).get(name)
                if place is not None:
                    return Location(folder / target, *place)
    return None


def remove_joined(folder: Path) -> None:
    """Remove parts that a process had joined, and was killed before it removed them."""
    for name, parts in joined(folder).items():
        if (folder / name).exists():
            for part in parts:
                (folder / part).unlink(missing_ok=True)
