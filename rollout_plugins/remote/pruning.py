"""Remove the text of old rollouts but keep their numbers.

A pruned rollout keeps its row with everything that is counted, charted and filtered by, so the run's statistics do not
change. Its messages, tool calls, tokens and images are removed, and its marks say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import skip_if_damaged
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.remote.folders import files_of
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.schema import HEAVY
from rollout_plugins.store.write import ROW_GROUP, part_writer
from rollout_plugins.system.files import replace_file

_MARK = b"rollout_plugins.pruned"
#: The content columns of a pruned rollout that become empty.
_EMPTIED = tuple(name for name in HEAVY if name != "marks")


class Pruned(NamedTuple):
    """What a pruning removed, or would remove."""

    rollouts: int
    of: int
    bytes: int


def prune(run: StoredRun, keep: str, *, progress: Callable[[str, int, int], object], really: bool = True) -> Pruned:
    """Remove the text of all rollouts for which `keep`, a SQL condition, is not true."""
    kept_ids = set(run.table(["id"], where=keep, superseded=True)["id"].to_pylist())
    total = Pruned(0, 0, 0)
    done: set[Path] = set()
    while parts := [part for part in find_parts(run.dir) if not part.is_journal and part.path not in done]:
        for number, part in enumerate(parts):
            done.add(part.path)
            with (
                skip_if_damaged(part.path, run.health.damaged),
                suppress(FileNotFoundError),
            ):  # another process joined it: the joined part comes later
                part_result = prune_part(
                    part.path, lambda table: _among(table, kept_ids), f"not kept by {keep}", really=really
                )
                total = Pruned(*(sum(pair) for pair in zip(total, part_result, strict=True)))
            progress("pruning", number + 1, len(parts))
    if really and total.rollouts:
        total = total._replace(bytes=total.bytes + _remove_media(run))
    return total


def _among(table: pa.Table, kept_ids: Iterable[str]) -> pa.Array:
    known = kept_ids if isinstance(kept_ids, set) else set(kept_ids)
    return pa.array([ident in known for ident in table["id"].to_pylist()], pa.bool_())


def prune_part(
    path: Path, keeps: Callable[[pa.Table], pa.Array], why: str, columns: Sequence[str] = (), *, really: bool = True
) -> Pruned:
    """Remove the text of those rollouts of a part for which `keeps` returns False. The file is replaced atomically."""
    with pq.ParquetFile(path) as file:
        light = file.read(columns=["id", "step", "split", "marks", *columns])
        gone = pc.and_(pc.invert(keeps(light)), pc.invert(are_pruned(light)))
        count = pc.sum(gone).as_py() or 0
        if not count:
            return Pruned(0, light.num_rows, 0)
        names = file.schema_arrow.names
        size = _size(file, [name for name in _EMPTIED if name in names]) * count // light.num_rows
        if not really:
            return Pruned(count, light.num_rows, size)
        before = path.stat().st_size
        replace_file(path, lambda target: _write(file, target, gone, why))
    return Pruned(count, light.num_rows, before - path.stat().st_size)


def _write(file: pq.ParquetFile, target: Path, gone: pa.ChunkedArray, why: str) -> None:
    schema = file.schema_arrow.with_metadata({**(file.schema_arrow.metadata or {}), _MARK: why.encode()})
    at = 0
    with part_writer(target, schema) as add:
        for batch in file.iter_batches(ROW_GROUP):
            table = pa.Table.from_batches([batch])
            mask = gone.slice(at, table.num_rows)
            at += table.num_rows
            add(_emptied(table, mask.combine_chunks(), why).cast(schema))


def _emptied(table: pa.Table, gone: pa.BooleanArray, why: str) -> pa.Table:
    for number, field in enumerate(table.schema):
        if field.name in _EMPTIED:
            nothing = pa.nulls(table.num_rows, field.type)
            if pa.types.is_list(field.type):
                nothing = pa.array([[]] * table.num_rows, field.type)
            rows = pc.add(pa.array(range(table.num_rows)), pc.multiply(gone.cast(pa.int64()), table.num_rows))
            both = pa.chunked_array([*table[field.name].chunks, nothing], field.type).combine_chunks()
            table = table.set_column(number, field, both.take(rows))
    field, texts = table.schema.field("marks"), zip(table["marks"].to_pylist(), gone.to_pylist(), strict=True)
    marks = pa.array([_marked(text, why) if is_gone else text for text, is_gone in texts], field.type)
    return table.set_column(table.schema.names.index("marks"), field, marks)


def _marked(text: str | None, why: str) -> str:
    try:
        marks = json.loads(text) if text else {}
    except ValueError:
        marks = {}
    return json.dumps({**(marks if isinstance(marks, dict) else {}), "pruned": why}, ensure_ascii=False)


def are_pruned(table: pa.Table) -> pa.ChunkedArray:
    """Return which rollouts have lost their text."""
    return pc.fill_null(pc.match_substring(table["marks"], '"pruned":'), False)


def is_pruned(path: Path) -> bool:
    """Return True if a part was written by pruning."""
    return _MARK in (pq.read_metadata(path).metadata or {})


def _size(file: pq.ParquetFile, names: list[str]) -> int:
    """Return the number of bytes of these columns in the file."""
    about = file.metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(chunk.total_compressed_size for chunk in columns if chunk.path_in_schema.partition(".")[0] in names)


def _remove_media(run: StoredRun) -> int:
    """Remove images that no rollout refers to, unless somebody may be about to store a rollout with one."""
    if not run.attempts or any(attempt["ended"] is None for attempt in run.attempts):
        return 0
    used = set()
    for table in run.batches(["images"], superseded=True):
        used |= {image["path"] for images in table["images"].to_pylist() for image in images or ()}
    freed = 0
    for file in files_of(run.dir):
        if file.name.startswith("media/") and file.name not in used:
            freed += file.size
            file.path.unlink()
    return freed


def check_keep(run: StoredRun, keep: str) -> None:
    """Raise an error if the condition would keep everything or nothing, because it is probably a mistake."""
    kept_count, count = run.count(where=keep, superseded=True), run.count(superseded=True)
    if count and kept_count == count:
        raise RunError(f"{keep!r} is true of all {count:,} rollouts, so there is nothing to prune")
    if count and not kept_count:
        raise RunError(f"{keep!r} is true of none of the {count:,} rollouts; write what is to be kept")
