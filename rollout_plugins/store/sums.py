"""Compute the sums from which a run's statistics are made, and store them in the footer of each part.

With these sums, computing the statistics of a run takes the same time for any number of rows. Groups that are
complete in a part are included in the sums of their generation. For the other groups, the footer has enough to merge
them. If a footer has no sums, because an older version wrote it or the file is still a journal, they are computed
from the rows.
"""

from __future__ import annotations

import base64
import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.store.any_version import integers, with_columns
from rollout_plugins.system.remote_runs import open_run_file

if TYPE_CHECKING:
    from pathlib import Path

#: The number changes with the layout. Sums with another layout are ignored and computed from the rows.
KEY = b"rollout_plugins.sums.2"
#: How many bytes at the end of a file are read at once; the footer of a part with few row groups fits.
_TAIL = 32 * 2**10
#: How many parts are unpacked at once.
_PARTS_AT_ONCE = 64
_HEAD = struct.Struct("<QII")
_NULL = -(2**63)
_CODEC = pa.Codec("zstd")
BY = ("split", "attempt", "step", "generation")
_KEYS = {"split": "text", **dict.fromkeys(BY[1:], "whole or null")}
#: The columns of the sums: by generation, by group that is incomplete in its part, and by reward function.
LAYOUT: dict[str, dict[str, str]] = {
    "generations": {
        **_KEYS,
        **dict.fromkeys(("rollouts", "scored", "finite", "nan", "not_finite", "with_tokens", "most_tokens"), "whole"),
        # Integers from an import may add up to more than 64 bits.
        "tokens": "real",
        **dict.fromkeys(("truncated", "errors", "with_turns", "turns", "calls", "failed_calls"), "whole"),
        **dict.fromkeys(("reward", "reward_min", "reward_max", "mean", "squares", "spreads"), "real"),
        **dict.fromkeys(("groups", "flat_groups"), "whole"),
        **dict.fromkeys(("first_group", "last_group"), "whole or null"),
    },
    "groups": {
        **_KEYS,
        "group": "whole or null",
        "finite": "whole",
        **dict.fromkeys(("mean", "squares", "least", "most"), "real"),
    },
    "rewards": {**_KEYS, "name": "text", **dict.fromkeys(("values", "nan", "infinite"), "whole"), "sum": "real"},
}
_NEEDED = (
    *BY, "group", "group_size", "reward", "completion_tokens", "finish", "error", "turns", "calls", "failed_calls",
    "rewards",
)  # fmt: skip


class Sums(NamedTuple):
    """A table for each kind of sums, see `LAYOUT`; the column `_part` is the index of the part."""

    generations: pa.Table
    groups: pa.Table
    rewards: pa.Table


def columns(present: Iterable[str]) -> list[str]:
    """Return the columns of a file that the sums are computed from."""
    return [name for name in present if name in _NEEDED]


def copy_columns(table: pa.Table) -> pa.Table:
    """Return a copy of only those columns that the sums are computed from."""
    copy = pa.BufferOutputStream()
    needed = table.select(columns(table.column_names))
    with pa.ipc.new_stream(copy, needed.schema) as stream:
        stream.write_table(needed)
    return pa.ipc.open_stream(copy.getvalue()).read_all()


def summands(table: pa.Table) -> pa.Table:
    """Return for each rollout the values that are summed."""
    rows = with_columns(table, _NEEDED)
    failed = pc.or_(pc.is_valid(rows["error"]), pc.fill_null(pc.equal(rows["finish"], "error"), False))
    reward = rows["reward"]
    is_nan = pc.fill_null(pc.is_nan(reward), False)
    summands = rows.drop_columns(["error", "finish", "reward", "completion_tokens"])
    for name, column in {
        "reward": where(pc.invert(is_nan), reward),
        "finite": where(pc.fill_null(pc.is_finite(reward), False), reward),
        "nan": is_nan,
        "not_finite": _has_odd_reward(rows),
        "completion_tokens": rows["completion_tokens"],
        "tokens": pc.cast(rows["completion_tokens"], pa.float64(), safe=False),
        "truncated": pc.fill_null(pc.equal(rows["finish"], "length"), False),
        "errors": failed,
    }.items():
        summands = summands.append_column(name, column)
    return summands


def _has_odd_reward(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each rollout whether its reward, or that of a function, is NaN or infinite."""
    is_odd = pc.invert(pc.fill_null(pc.is_finite(rows["reward"]), True))
    of, _, value = _values_of_functions(rows)
    places = pc.unique(of.filter(_is_odd(value)))
    if len(places):
        is_odd = pc.or_(is_odd, pc.is_in(integers(range(rows.num_rows)), places))
    return is_odd


def _is_odd(value: Any) -> Any:
    return pc.invert(pc.fill_null(pc.is_finite(value), True))


def _values_of_functions(rows: pa.Table) -> tuple[Any, Any, Any]:
    """Return the row, the name and the value of each result of a reward function."""
    rewards = rows["rewards"].combine_chunks()
    rewards = rewards.combine_chunks() if isinstance(rewards, pa.ChunkedArray) else rewards
    pairs = pc.list_flatten(rewards)
    return pc.list_parent_indices(rewards), pc.struct_field(pairs, "name"), pc.struct_field(pairs, "value")


def pack(rows: pa.Table, *, end: int = 0, merge_groups: bool = True) -> bytes:
    """Return the packed sums of `lines`. `end` is where their footer begins; a copy in another file is ignored.

    whole: whether groups that seem complete are included in the sums of their generation.
    """
    groups = _groups(rows)
    count, size = groups["rollouts"], groups["group_size_max"]
    seems = pc.and_(pc.greater(size, 0), pc.and_(pc.greater_equal(count, size), pc.is_valid(groups["group"])))
    is_whole = pc.and_(pc.fill_null(seems, False), merge_groups)
    generations = _with_groups(_generations(rows), groups.filter(is_whole))
    others = groups.filter(pc.and_(pc.invert(is_whole), pc.greater(groups["finite"], 0)))
    return pack_merged(Sums(generations, others, _rewards(rows)), end)


def pack_merged(merged: Sums, end: int) -> bytes:
    """Pack sums like those of one part; see `packed` for `end`."""
    texts: dict[str | None, int] = {}
    tables = [_to_bytes(table, layout, texts) for table, layout in zip(merged, LAYOUT.values(), strict=True)]
    head = json.dumps({"bytes": list(map(len, tables)), "texts": list(texts)}).encode()
    plain = b"".join([struct.pack("<I", len(head)), head, *tables])
    small = _CODEC.compress(plain, asbytes=True)
    return bytes(_HEAD.pack(end, len(plain), crc32(small)) + small)


def footer(rows: Sequence[pa.Table], end: int) -> dict[bytes, bytes]:
    """Return the footer entry with the sums of these rollouts, for a footer that begins at `end`.

    It is text, because other readers of Parquet expect text.
    """
    return {KEY: base64.b64encode(pack(summands(pa.concat_tables(rows)), end=end))} if rows else {}


def read_packed(path: Path) -> bytes | None:
    """Return the packed sums in a part's footer, or None if it has none of its own.

    The bytes are searched for the key, because parsing the footer takes a millisecond, and a run may have thousands.
    """
    source = open_run_file(path)
    with path.open("rb", buffering=0) if source is path else source as file:
        size = file.seek(0, 2)
        file.seek(max(size - _TAIL, 0))
        tail = file.read(_TAIL)
        start = size - 8 - int.from_bytes(tail[-8:-4], "little")
        if tail[-4:] != b"PAR1" or start < 4:
            return None
        if size - start > len(tail):
            file.seek(start)
            tail = file.read(size - start)
    at = tail.rfind(KEY)
    content = _decoded(_text_at(tail, at + len(KEY) + 1)) if at >= 0 else b""
    return content if is_packed_for(content, start) else None


def is_packed_for(content: bytes, end: int) -> bool:
    """Return True if these sums are complete and belong to a footer that begins at `end`."""
    if len(content) < _HEAD.size:
        return False
    recorded_end, _, check = _HEAD.unpack_from(content)
    return bool(recorded_end == end and check == crc32(content[_HEAD.size :]))


def unpack(parts: Sequence[bytes]) -> Sums:
    """Return the sums of many parts in one table each; `_part` is the index in the list."""
    batches = [
        _unpack_batch(parts[start : start + _PARTS_AT_ONCE], start)
        for start in range(0, len(parts) or 1, _PARTS_AT_ONCE)
    ]
    return Sums(*map(pa.concat_tables, zip(*chain.from_iterable(batches), strict=True)))


def _unpack_batch(parts: Sequence[bytes], first: int) -> list[list[pa.Table]]:
    """Return the tables of so many parts that unpacking them takes little memory."""
    alike: dict[tuple[str | None, ...], list[tuple[int, list[memoryview]]]] = {}
    for number, plain in enumerate(_decompress(parts), first):
        texts, tables = _split_part(plain)
        alike.setdefault(texts, []).append((number, tables))
    return [_tables(texts, some) for texts, some in (alike or {(): []}).items()]


def _decompress(parts: Sequence[bytes]) -> Iterator[memoryview]:
    """Unpack sums. Many parts are decompressed in one call, during which other threads can run."""
    sizes = [_HEAD.unpack_from(part)[1] for part in parts]
    small = b"".join([part[_HEAD.size :] for part in parts])
    plain = memoryview(_CODEC.decompress(small, sum(sizes)) if parts else b"")
    return (plain[start:end] for start, end in pairwise(accumulate(sizes, initial=0)))


def _split_part(plain: memoryview) -> tuple[tuple[str | None, ...], list[memoryview]]:
    """Return the texts and the tables of a part's packed sums."""
    start = 4 + int.from_bytes(plain[:4], "little")
    head = json.loads(bytes(plain[4:start]))
    ends = list(accumulate(head["bytes"], initial=start))
    return tuple(head["texts"]), [plain[at:end] for at, end in pairwise(ends)]


def where(mask: Any, values: Any) -> Any:
    return pc.if_else(mask, values, pa.nulls(1, values.type)[0])


def group_rows(rows: pa.Table, by: Sequence[str], **columns: tuple[str, str]) -> pa.Table:
    """Group rows by keys. `columns` maps each new column to a column and an aggregate function."""
    aggregates = [
        (column, how, pc.VarianceOptions(ddof=0, min_count=0) if how == "variance" else None)
        for column, how in columns.values()
    ]
    grouped = rows.group_by([*by], use_threads=False).aggregate(
        [aggregate if aggregate[2] else aggregate[:2] for aggregate in aggregates]
    )
    names = {f"{column}_{how}": name for name, (column, how) in columns.items()}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names])


def _generations(rows: pa.Table) -> pa.Table:
    tokens = "completion_tokens"
    sums = group_rows(
        rows.append_column("one", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)),
        list(BY),
        rollouts=("one", "sum"), scored=("reward", "count"), finite=("finite", "count"), nan=("nan", "sum"),
        not_finite=("not_finite", "sum"), with_tokens=(tokens, "count"), tokens=("tokens", "sum"),
        most_tokens=(tokens, "max"), truncated=("truncated", "sum"), errors=("errors", "sum"),
        with_turns=("turns", "count"), turns=("turns", "sum"), calls=("calls", "sum"),
        failed_calls=("failed_calls", "sum"), reward=("reward", "sum"), reward_min=("reward", "min"),
        reward_max=("reward", "max"), mean=("finite", "mean"), variance=("finite", "variance"),
    )  # fmt: skip
    return _with_squares(sums, sums["reward_min"], sums["reward_max"])


def _groups(rows: pa.Table) -> pa.Table:
    sums = group_rows(
        rows.append_column("one", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)),
        [*BY, "group"],
        rollouts=("one", "sum"), group_size_max=("group_size", "max"), finite=("finite", "count"),
        mean=("finite", "mean"), variance=("finite", "variance"), least=("finite", "min"), most=("finite", "max"),
    )  # fmt: skip
    return _with_squares(sums, sums["least"], sums["most"])


def _with_squares(sums: pa.Table, least: Any, most: Any) -> pa.Table:
    """Add the sum of squared distances from the mean, which is exactly 0 if all values are equal."""
    squares = pc.multiply(sums["variance"], pc.cast(sums["finite"], pa.float64()))
    return sums.append_column("squares", pc.if_else(pc.equal(least, most), 0.0, squares))


def _with_groups(generations: pa.Table, groups: pa.Table) -> pa.Table:
    """Add the statistics of the complete groups, and the numbers of the first and the last of them.

    If group numbers are not consecutive, a generation has a row for each span of them, of which only the first has
    statistics. So it can be detected that a group is in two parts even if their numbers alternate.
    """
    ordered = groups.sort_by([(name, "ascending") for name in (*BY, "group")])
    numbered = ordered.append_column("run", pc.subtract(ordered["group"], integers(range(ordered.num_rows))))
    runs = group_rows(numbered, [*BY, "run"], first_group=("group", "min"), last_group=("group", "max"))
    return _outer_join(_outer_join(generations, _complete_groups(numbered), BY), runs, [*BY, "run"])


def _outer_join(left: pa.Table, right: pa.Table, by: Sequence[str]) -> pa.Table:
    """Add the columns of the right table for the same keys, and its other rows. Unlike in a join, null equals null."""
    rows = pa.concat_tables([left, right], promote_options="default")
    return group_rows(rows, by, **{name: (name, "max") for name in rows.column_names if name not in by})


def _complete_groups(groups: pa.Table) -> pa.Table:
    several = pc.greater(groups["finite"], 1)
    spread = pc.sqrt(pc.divide(groups["squares"], pc.cast(groups["finite"], pa.float64())))
    with_spread = groups.append_column("spread", where(several, spread))
    with_spread = with_spread.append_column(
        "flat", pc.and_(several, pc.fill_null(pc.equal(groups["least"], groups["most"]), False))
    )
    return group_rows(
        with_spread, list(BY), groups=("spread", "count"), flat_groups=("flat", "sum"), spreads=("spread", "sum"),
        run=("run", "min"),
    )  # fmt: skip


def _rewards(rows: pa.Table) -> pa.Table:
    """Return the sums of each reward function, without missing values and NaN."""
    of, name, value = _values_of_functions(rows)
    is_nan = pc.fill_null(pc.is_nan(value), False)
    columns = {
        "name": name,
        "value": where(pc.invert(is_nan), value),
        "nan": is_nan,
        "infinite": pc.and_(_is_odd(value), pc.invert(is_nan)),
    }
    table = rows.select(list(BY)).take(of)
    for column, values in columns.items():
        table = table.append_column(column, values)
    return group_rows(
        table.filter(pc.is_valid(name)), [*BY, "name"],
        values=("value", "count"), nan=("nan", "sum"), infinite=("infinite", "sum"), sum=("value", "sum"),
    )  # fmt: skip


def _to_bytes(table: pa.Table, layout: Mapping[str, str], texts: dict[str | None, int]) -> bytes:
    """Return a table as bytes, row by row, eight bytes for each value, so that tables can be joined as one."""
    cells = array("q", bytes(8 * len(layout) * table.num_rows))
    for at, (name, kind) in enumerate(layout.items()):
        cells[at :: len(layout)] = _column(table[name], kind, texts)
    return cells.tobytes()


def _column(column: pa.ChunkedArray, kind: str, texts: dict[str | None, int]) -> array[int]:
    if kind == "text":
        return array("q", (texts.setdefault(text, len(texts)) for text in column.to_pylist()))
    if kind == "real":
        return array("q", array("d", (value or 0.0 for value in column.to_pylist())).tobytes())
    nothing = _NULL if kind == "whole or null" else 0
    return array("q", (nothing if value is None else value for value in column.cast(pa.int64()).to_pylist()))


def _tables(texts: Sequence[str | None], parts: Sequence[tuple[int, Sequence[memoryview]]]) -> list[pa.Table]:
    """Return the tables of parts that have the same texts."""
    merged = []
    for place, layout in enumerate(LAYOUT.values()):
        width = len(layout)
        cells = array("q", b"".join(tables[place] for _, tables in parts))
        columns = [_array(cells[at::width], kind, texts) for at, kind in enumerate(layout.values())]
        part = array("q")
        for number, tables in parts:
            part.extend(array("q", [number]) * (len(tables[place]) // 8 // width))
        merged.append(pa.table([*columns, _array(part, "whole")], names=[*layout, "_part"]))
    return merged


def _array(cells: array[int], kind: str, texts: Sequence[str | None] = ()) -> pa.Array:
    plain = pa.Array.from_buffers(
        pa.float64() if kind == "real" else pa.int64(), len(cells), [None, pa.py_buffer(cells)]
    )
    if kind == "text":
        return _texts(texts).take(plain)
    return where(pc.not_equal(plain, integers([_NULL])[0]), plain) if kind == "whole or null" else plain


def _texts(texts: Sequence[str | None]) -> pa.Array:
    """Return an array of texts. `pa.array` would import pandas, which is slow."""
    pieces = [(text or "").encode() for text in texts]
    ends = array("i", accumulate(map(len, pieces), initial=0))
    validity = sum(1 << place for place, text in enumerate(texts) if text is not None)
    buffers = (ends, b"".join(pieces), validity.to_bytes(len(texts) // 8 + 1, "little"))
    return pa.StringArray.from_buffers(len(texts), *map(pa.py_buffer, buffers))


def _text_at(footer: bytes, at: int) -> bytes:
    """Return the text at an offset of a Thrift footer: its length in groups of seven bits, then its bytes."""
    length = shift = 0
    while at < len(footer):
        length |= (footer[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if not footer[at - 1] & 128:
            break
    return footer[at : at + length]


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
