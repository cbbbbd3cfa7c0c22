"""Count what the files of a run hold, for a training that resumes it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_plugins.store import sums
from rollout_plugins.store.parts import Part, find_parts
from rollout_plugins.store.write import read_journal

if TYPE_CHECKING:
    from pathlib import Path


def last_generation(folder: Path, attempt: int) -> int | None:
    """Return the number of the last generation batch up to an attempt, or None if no file has one."""
    generations = _generations(folder)
    last: int | None = pc.max(generations.filter(pc.less_equal(generations["attempt"], attempt))["generation"]).as_py()
    return last


def count_rollouts(folder: Path) -> int:
    """Return the number of stored rollouts, including superseded ones."""
    return int(pc.sum(_generations(folder)["rollouts"]).as_py() or 0)


def _generations(folder: Path) -> pa.Table:
    while True:
        parts = find_parts(folder)
        found = [found for part in parts if (found := _sums(part))]
        is_complete = all(part.path.exists() for part in parts)
        if is_complete or parts == find_parts(folder):  # otherwise another process sealed or joined parts meanwhile
            return sums.unpack(found).generations


def _sums(part: Part) -> bytes | None:
    with suppress(Exception):  # a damaged file is reported when the run is opened
        if part.is_journal:
            return sums.pack(sums.summands(read_journal(part.path)))
        return sums.read_packed(part.path) or sums.pack(_lines(part.path))
    return None


def _lines(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return sums.summands(file.read(columns=sums.columns(file.schema_arrow.names)))
