"""Convert token ids, masks and log-probabilities to a column."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from rollout_plugins.content.exact_json import INSPECTION_ERRORS
from rollout_plugins.content.hashing import is_array, is_tensor
from rollout_plugins.content.tokens import Numbers, TokenColumn
from rollout_plugins.store.column_values import Row
from rollout_plugins.store.schema import TOKENS

_PACKED = {"b": pa.int8(), "B": pa.uint8(), "i": pa.int32(), "q": pa.int64(), "f": pa.float32(), "d": pa.float64()}
_LISTS = frozenset({list, tuple, type(None)})


def tokens(values: Sequence[Any], rows: Sequence[Row]) -> pa.StructArray:
    """Return the column of tokens. It is all null, and needs no space, unless the run records tokens."""
    column = TokenColumn.of(values)
    for place, value in column.others.items():
        if value is not None:
            rows[place].lose(value, "tokens", "not of class Tokens")
    if len(column.others) == len(rows):
        return pa.nulls(len(rows), TOKENS)
    lists = [_lists(field, column.fields[field.name], rows) for field in TOKENS]
    nulls = pa.array([place in column.others for place in range(len(rows))])
    return pa.StructArray.from_arrays(lists, fields=list(TOKENS), mask=nulls)


def _lists(field: pa.Field, values: Sequence[Any], rows: Sequence[Row]) -> pa.ListArray:
    """Return the lists of one field. Values of another type are lost and marked."""
    if isinstance(values, Numbers):
        if all(other is None for other in values.others.values()):
            nulls = [place in values.others for place in range(len(values))]
            return _list_array(field, values.starts, _array(values.flat), nulls)
        values = [values.packed(place) for place in range(len(values))]
    if set(map(type, values)) <= _LISTS:
        try:
            return _cast_exactly(pa.array(values), field.type)
        except INSPECTION_ERRORS:
            pass
    arrays = [_numbers(value, field, row) for value, row in zip(values, rows, strict=True)]
    starts = list(accumulate((0 if array is None else len(array) for array in arrays), initial=0))
    flat = pa.concat_arrays([pa.array([], field.type.value_type), *(array for array in arrays if array is not None)])
    return _list_array(field, starts, flat, [array is None for array in arrays])


def _list_array(field: pa.Field, starts: Sequence[int], flat: pa.Array, nulls: Sequence[bool]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), flat, type=field.type, mask=pa.array(nulls))


def _numbers(value: Any, field: pa.Field, row: Row) -> pa.Array | None:
    if value is None:
        return None
    kind = field.type.value_type
    try:
        packed = _array(value)
        return _cast_exactly(pa.array([value]), field.type).values if packed is None else packed.cast(kind)
    except INSPECTION_ERRORS:
        row.lose(value, f"tokens.{field.name}", "not a list of such numbers")
        return None


def _cast_exactly(lists: pa.ListArray, kind: pa.ListType) -> pa.ListArray:
    """Cast lists whose type Arrow inferred. With an explicit integer type, Arrow would truncate floats."""
    inferred = lists.type if pa.types.is_null(lists.type) else lists.type.value_type
    if not (pa.types.is_integer(inferred) or pa.types.is_floating(inferred) or inferred in (pa.null(), pa.bool_())):
        raise TypeError
    return lists.cast(kind)


def _array(value: Any) -> pa.Array | None:
    """Return packed numbers as an array without inspecting each, or None for other values."""
    if isinstance(value, bytes):
        return pa.Array.from_buffers(pa.uint8(), len(value), [None, pa.py_buffer(value)])
    if isinstance(value, (array, memoryview)):
        kind = _PACKED.get(value.typecode if isinstance(value, array) else value.format)
        return None if kind is None else pa.Array.from_buffers(kind, len(value), [None, pa.py_buffer(value)])
    if is_tensor(value):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value  # NumPy has no bfloat16
        return pa.array(value.numpy())
    return pa.array(value) if is_array(value) and value.dtype.kind in "biuf" else None
