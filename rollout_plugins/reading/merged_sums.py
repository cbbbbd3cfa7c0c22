"""Merge the sums of many parts, as if all their rollouts were in one part."""

# ruff: noqa: S608 - SQL is put together from names of our own
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.reading.summary import SQUARES
from rollout_plugins.store.any_version import integers
from rollout_plugins.store.sums import BY, LAYOUT, Sums, where

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = "split, attempt, step, generation"
_KEYS = {"generations": _KEY, "groups": f'{_KEY}, "group"', "rewards": f"{_KEY}, name"}
_NOT_SUMMED = {
    "most_tokens": "max(most_tokens)",
    "reward_min": "min(reward_min) filter (where scored > 0)",
    "reward_max": "max(reward_max) filter (where scored > 0)",
    "least": "min(least)",
    "most": "max(most)",
    "mean": "any_value(middle)",
    "squares": SQUARES,
}
_SPAN = ("first_group", "last_group")
#: From a plain number, PyArrow would make a scalar through pandas, whose import is slow.
_ONE = integers([1])[0]


def queries() -> Sums:
    """Return SQL that merges the tables `part_generations`, `part_groups` and `part_rewards`, without spans."""
    return Sums(*map(_query, LAYOUT))


def _query(name: str) -> str:
    keys, layout = _KEYS[name], LAYOUT[name]
    figures = {
        column: _NOT_SUMMED.get(column, f"sum({column})")
        for column, kind in layout.items()
        if kind in {"whole", "real"}
    }
    selected = ", ".join(
        f"{sql}::{'double' if layout[c] == 'real' else 'bigint'} as {c}" for c, sql in figures.items()
    )
    return f"select {keys}, {selected} from ({_with_middle(name, keys)}) group by {keys}"


def _with_middle(name: str, keys: str) -> str:
    """Return SQL that adds to each row the mean over its keys.

    A join with few rows is faster than a window function.
    """
    if "mean" not in LAYOUT[name]:
        return f"from part_{name}"
    same = " and ".join(f"p.{key.strip()} is not distinct from m.{key.strip()}" for key in keys.split(","))
    middle = f"select {keys}, sum(finite * mean) / nullif(sum(finite), 0) as middle from part_{name} group by {keys}"
    return f"select p.*, m.middle from part_{name} p join ({middle}) m on {same}"


def spans(sums: Sums) -> pa.Table | None:
    """Return the spans of consecutive complete groups over all parts, or None if two parts share a group.

    A span of one part never contains a group that is incomplete there. So if a span starts inside the previous one,
    two parts share a group.
    """
    complete = sums.generations.select([*BY, *_SPAN]).filter(pc.is_valid(sums.generations["first_group"]))
    if not complete.num_rows:
        return complete
    others = sums.groups.select([*BY, "group"]).filter(pc.is_valid(sums.groups["group"]))
    rows = pa.concat_tables([complete, others.rename_columns([*BY, "first_group"])], promote_options="default")
    places = pa.table([_number_keys(rows, BY), *rows.select(_SPAN).combine_chunks()], names=["of", *_SPAN])
    order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in places.column_names])
    key, first, last = places.take(order)
    is_whole = pc.is_valid(last)
    before = _previous_value(last, 0)
    same = pc.equal(key, _previous_value(where(is_whole, key), -1))
    if pc.any(pc.and_(same, pc.less_equal(first, before))).as_py():
        return None
    goes_on = pc.and_(same, pc.equal(pc.subtract(first, before), _ONE))
    begins = pc.invert(goes_on).filter(is_whole)
    # The list of starts, shifted by one and wrapped around: each span ends where the next one starts.
    ends = pa.chunked_array([*begins.slice(1).chunks, *begins.slice(0, 1).chunks])
    starts = rows.take(pc.filter(order, is_whole).filter(begins)).drop_columns(["last_group"])
    return starts.append_column("last_group", last.filter(is_whole).filter(ends))


def generations_of(sums: Sums) -> dict[int, tuple[int, int]]:
    """Return the first and the last generation of each part by its number.

    Parts with rollouts that have no generation are left out.
    """
    rows = sums.generations.select(["_part", "generation"]).combine_chunks()
    part, generation = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names]))
    if not rows.num_rows:
        return {}
    others = pc.not_equal(part.slice(1), part.slice(0, len(part) - 1))
    ends = [*pc.indices_nonzero(others).to_pylist(), len(part) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    firsts, lasts = (generation.take(integers(places)).to_pylist() for places in (starts, ends))
    spans = zip(part.take(integers(starts)).to_pylist(), firsts, lasts, strict=True)
    return {number: (first, last) for number, first, last in spans if last is not None}  # nulls are sorted last


def _previous_value(column: pa.ChunkedArray, first: int) -> pa.ChunkedArray:
    """Return for each row the last value before it."""
    return pc.fill_null_forward(pa.chunked_array([integers([first]), *column.chunks])).slice(0, len(column))


def _number_keys(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Return an integer for each row, equal for rows with equal keys: sorting by one column is faster than by four."""
    numbers = pa.repeat(integers([0])[0], table.num_rows)
    for key in keys:
        codes = table[key].combine_chunks().dictionary_encode("encode")
        several = pc.multiply(numbers, integers([len(codes.dictionary)])[0])
        numbers = pc.add(several, codes.indices.cast(pa.int64())).dictionary_encode().indices.cast(pa.int64())
    return numbers
