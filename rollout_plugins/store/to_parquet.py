"""Rollouts as one file that others open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from rollout_plugins.errors import RunError
from rollout_plugins.store.write import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollout_plugins.store.read import StoredRun


def to_parquet(
    run: StoredRun,
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    progress: Callable[[int], object] = lambda _: None,
    **filters: Any,
) -> int:
    """Write the rollouts, annotations beside them, to one Parquet file, a few at a time; returns how many."""
    written = 0

    def write(target: Path) -> None:
        nonlocal written
        writer = None
        for table in run.tables(columns, **filters):
            writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
            writer.write_table(table.cast(writer.schema))
            written += table.num_rows
            progress(written)
        if writer is None:
            raise RunError("no rollouts match, so there is nothing to write")
        writer.close()

    replace_file(path, write)
    return written
