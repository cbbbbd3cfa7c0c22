"""Give tables that any version wrote the columns of the current version."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.store.schema import REWARD_PREFIX, TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def with_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return exactly these columns; columns that the file's version lacks are null."""
    return pa.Table.from_arrays([_column(table, name) for name in names], names=list(names))


def _column(table: pa.Table, name: str) -> Any:
    if name.startswith(REWARD_PREFIX) and "rewards" in table.column_names:
        return _reward(table["rewards"].combine_chunks(), name.removeprefix(REWARD_PREFIX))
    kind = TYPES.get(name, pa.float64())
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    column = table[name]
    return column if pa.types.is_nested(kind) or column.type == kind else column.cast(kind)


def _reward(rewards: Any, name: str) -> Any:
    """Return the values of one reward function."""
    pairs, rows = rewards.flatten(), pc.list_parent_indices(rewards)
    named = pc.equal(pc.struct_field(pairs, "name"), name)
    places = pc.index_in(integers(range(len(rewards))), value_set=rows.filter(named).cast(pa.int64()))
    return pc.struct_field(pairs, "value").filter(named).take(places)


def integers(numbers: Iterable[int]) -> pa.Array:
    """Return an Arrow array of integers. Unlike `pa.array`, this does not import pandas, which is slow."""
    values = array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
