"""The sums of many parts as those of one."""

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

_OF = "split, attempt, step, generation"
_KEYS = {"generations": _OF, "groups": f'{_OF}, "group"', "rewards": f"{_OF}, name"}
_NOT_ADDED = {
    "most_tokens": "max(most_tokens)",
    "reward_min": "min(reward_min) filter (where scored > 0)",
    "reward_max": "max(reward_max) filter (where scored > 0)",
    "least": "min(least)",
    "most": "max(most)",
    "mean": "any_value(middle)",
    "squares": SQUARES,
}
_SPAN = ("first_group", "last_group")
#: A plain number would be made a scalar by way of pandas, which takes longer to import than all of this.
_ONE = integers([1])[0]


def queries() -> Sums:
    """SQL for all but the `spans` of one part that has what `part_generations` and so on have."""
    return Sums(*map(_query, LAYOUT))


def _query(name: str) -> str:
    keys, layout = _KEYS[name], LAYOUT[name]
    figures = {
        column: _NOT_ADDED.get(column, f"sum({column})")
        for column, kind in layout.items()
        if kind in {"whole", "real"}
    }
    told = ", ".join(f"{sql}::{'double' if layout[c] == 'real' else 'bigint'} as {c}" for c, sql in figures.items())
    return f"select {keys}, {told} from ({_with_middle(name, keys)}) group by {keys}"


def _with_middle(name: str, keys: str) -> str:
    """Each row with the mean of all that have its keys. A join with few rows is quicker than a window over many."""
    if "mean" not in LAYOUT[name]:
        return f"from part_{name}"
    same = " and ".join(f"p.{key.strip()} is not distinct from m.{key.strip()}" for key in keys.split(","))
    middle = f"select {keys}, sum(finite * mean) / nullif(sum(finite), 0) as middle from part_{name} group by {keys}"
    return f"select p.*, m.middle from part_{name} p join ({middle}) m on {same}"


def spans(found: Sums) -> pa.Table | None:
    """From the first to the last number of whole groups without one that is left out, over all parts.

    None when two parts have the same one. No span of a part has a group in it that is not whole, so one that lies in
    the span before it is in two parts, too.
    """
    whole = found.generations.select([*BY, *_SPAN]).filter(pc.is_valid(found.generations["first_group"]))
    if not whole.num_rows:
        return whole
    others = found.groups.select([*BY, "group"]).filter(pc.is_valid(found.groups["group"]))
    rows = pa.concat_tables([whole, others.rename_columns([*BY, "first_group"])], promote_options="default")
    places = pa.table([_numbered(rows, BY), *rows.select(_SPAN).combine_chunks()], names=["of", *_SPAN])
    order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in places.column_names])
    of, first, last = places.take(order)
    is_whole = pc.is_valid(last)
    before = _before(last, 0)
    same = pc.equal(of, _before(where(is_whole, of), -1))
    if pc.any(pc.and_(same, pc.less_equal(first, before))).as_py():
        return None
    goes_on = pc.and_(same, pc.equal(pc.subtract(first, before), _ONE))
    begins = pc.invert(goes_on).filter(is_whole)
    ends = pa.chunked_array([*begins.slice(1).chunks, *begins.slice(0, 1).chunks])  # the first one begins a span
    starts = rows.take(pc.filter(order, is_whole).filter(begins)).drop_columns(["last_group"])
    return starts.append_column("last_group", last.filter(is_whole).filter(ends))


def generations_of(found: Sums) -> dict[int, tuple[int, int]]:
    """The first and the last generation of each part, by its place; without parts that have rows of none."""
    rows = found.generations.select(["_part", "generation"]).combine_chunks()
    part, generation = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names]))
    if not rows.num_rows:
        return {}
    others = pc.not_equal(part.slice(1), part.slice(0, len(part) - 1))
    ends = [*pc.indices_nonzero(others).to_pylist(), len(part) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    firsts, lasts = (generation.take(integers(places)).to_pylist() for places in (starts, ends))
    spans = zip(part.take(integers(starts)).to_pylist(), firsts, lasts, strict=True)
    return {number: (first, last) for number, first, last in spans if last is not None}  # a null comes last


def _before(column: pa.ChunkedArray, first: int) -> pa.ChunkedArray:
    """For each row the last value that stands before it."""
    return pc.fill_null_forward(pa.chunked_array([integers([first]), *column.chunks])).slice(0, len(column))


def _numbered(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """A number for each row, the same for those that have the same keys: one is quicker to sort by than four."""
    numbers = pa.repeat(integers([0])[0], table.num_rows)
    for key in keys:
        codes = table[key].combine_chunks().dictionary_encode("encode")
        several = pc.multiply(numbers, integers([len(codes.dictionary)])[0])
        numbers = pc.add(several, codes.indices.cast(pa.int64())).dictionary_encode().indices.cast(pa.int64())
    return numbers
