"""What charts and figures of a run are made of: sums of each generation, in the footer of its part.

So a run's figures cost what its parts cost, however many rows those have. A group of rollouts that is whole in its
part is in the generation's figures; of the others there is what it takes to put them together. What a footer does not
have, because an older version wrote it or because the file is still a journal, is computed from the rows.
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

#: The number changes with the layout. Sums of another layout are not found, and are computed from the rows.
KEY = b"rollout_plugins.sums.2"
#: The end of a file that is read at once; the footer of a part with few row groups fits in.
_TAIL = 32 * 2**10
#: Parts that are unpacked at once.
_AT_ONCE = 64
_HEAD = struct.Struct("<QII")
_NULL = -(2**63)
_CODEC = pa.Codec("zstd")
BY = ("split", "attempt", "step", "generation")
_KEYS = {"split": "text", **dict.fromkeys(BY[1:], "whole or null")}
#: Of each generation in a part, of each group that is not whole in it, of each reward function.
LAYOUT: dict[str, dict[str, str]] = {
    "generations": {
        **_KEYS,
        **dict.fromkeys(("rollouts", "scored", "finite", "nan", "not_finite", "with_tokens", "most_tokens"), "whole"),
        "tokens": "real",  # integers that an import made up may add up to more than 64 bits
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
    """A table for each kind of figure, see `LAYOUT`; `_part` says which of several parts a row is of."""

    generations: pa.Table
    groups: pa.Table
    rewards: pa.Table


def columns(present: Iterable[str]) -> list[str]:
    """Those of a file's columns that sums are made of."""
    return [name for name in present if name in _NEEDED]


def apart(table: pa.Table) -> pa.Table:
    """Of rollouts only the columns that sums are made of, in memory of their own."""
    copy = pa.BufferOutputStream()
    needed = table.select(columns(table.column_names))
    with pa.ipc.new_stream(copy, needed.schema) as stream:
        stream.write_table(needed)
    return pa.ipc.open_stream(copy.getvalue()).read_all()


def lines(table: pa.Table) -> pa.Table:
    """What sums are made of, for each rollout."""
    rows = with_columns(table, _NEEDED)
    failed = pc.or_(pc.is_valid(rows["error"]), pc.fill_null(pc.equal(rows["finish"], "error"), False))
    reward = rows["reward"]
    is_nan = pc.fill_null(pc.is_nan(reward), False)
    kept = rows.drop_columns(["error", "finish", "reward", "completion_tokens"])
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
        kept = kept.append_column(name, column)
    return kept


def _has_odd_reward(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each rollout whether its reward, or that of one of its functions, is NaN or infinite."""
    odd = pc.invert(pc.fill_null(pc.is_finite(rows["reward"]), True))
    of, _, value = _values_of_functions(rows)
    places = pc.unique(of.filter(_is_odd(value)))
    if len(places):
        odd = pc.or_(odd, pc.is_in(integers(range(rows.num_rows)), places))
    return odd


def _is_odd(value: Any) -> Any:
    return pc.invert(pc.fill_null(pc.is_finite(value), True))


def _values_of_functions(rows: pa.Table) -> tuple[Any, Any, Any]:
    """Return the row, the name and the value of everything that a reward function gave."""
    rewards = rows["rewards"].combine_chunks()
    rewards = rewards.combine_chunks() if isinstance(rewards, pa.ChunkedArray) else rewards
    pairs = pc.list_flatten(rewards)
    return pc.list_parent_indices(rewards), pc.struct_field(pairs, "name"), pc.struct_field(pairs, "value")


def packed(rows: pa.Table, *, end: int = 0, whole: bool = True) -> bytes:
    """The sums of `lines`, small. `end` is where the footer they go to begins, for those of another file do not count.

    whole: whether groups that seem to be whole may be taken together.
    """
    groups = _groups(rows)
    count, size = groups["rollouts"], groups["group_size_max"]
    seems = pc.and_(pc.greater(size, 0), pc.and_(pc.greater_equal(count, size), pc.is_valid(groups["group"])))
    is_whole = pc.and_(pc.fill_null(seems, False), whole)
    generations = _with_groups(_generations(rows), groups.filter(is_whole))
    others = groups.filter(pc.and_(pc.invert(is_whole), pc.greater(groups["finite"], 0)))
    return as_one(Sums(generations, others, _rewards(rows)), end)


def as_one(found: Sums, end: int) -> bytes:
    """Sums as one part has them, small; see `packed` for `end`."""
    texts: dict[str | None, int] = {}
    tables = [_cells(table, layout, texts) for table, layout in zip(found, LAYOUT.values(), strict=True)]
    head = json.dumps({"bytes": list(map(len, tables)), "texts": list(texts)}).encode()
    plain = b"".join([struct.pack("<I", len(head)), head, *tables])
    small = _CODEC.compress(plain, asbytes=True)
    return bytes(_HEAD.pack(end, len(plain), crc32(small)) + small)


def footer(rows: Sequence[pa.Table], end: int) -> dict[bytes, bytes]:
    """What a part's footer, which begins at `end`, says of these rollouts: text, as all readers of Parquet expect."""
    return {KEY: base64.b64encode(packed(lines(pa.concat_tables(rows)), end=end))} if rows else {}


def kept(path: Path) -> bytes | None:
    """The sums in a part's footer; None when it has none, or those of another file.

    They are found by their key. Taking a whole footer apart takes a millisecond, and a run may have thousands.
    """
    there = open_run_file(path)
    with path.open("rb", buffering=0) if there is path else there as file:
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
    return content if is_of(content, start) else None


def is_of(content: bytes, end: int) -> bool:
    """Whether these sums are whole, and those that were packed with this `end`."""
    if len(content) < _HEAD.size:
        return False
    told, _, check = _HEAD.unpack_from(content)
    return bool(told == end and check == crc32(content[_HEAD.size :]))


def joined(parts: Sequence[bytes]) -> Sums:
    """The sums of many parts; `_part` is the place in the list."""
    made = [_joined(parts[start : start + _AT_ONCE], start) for start in range(0, len(parts) or 1, _AT_ONCE)]
    return Sums(*map(pa.concat_tables, zip(*chain.from_iterable(made), strict=True)))


def _joined(parts: Sequence[bytes], first: int) -> list[list[pa.Table]]:
    """The tables of so many parts that what is unpacked of them takes little memory."""
    alike: dict[tuple[str | None, ...], list[tuple[int, list[memoryview]]]] = {}
    for number, plain in enumerate(_unpacked(parts), first):
        texts, tables = _taken_apart(plain)
        alike.setdefault(texts, []).append((number, tables))
    return [_tables(texts, some) for texts, some in (alike or {(): []}).items()]


def _unpacked(parts: Sequence[bytes]) -> Iterator[memoryview]:
    """What was packed. Of many parts it is one call, for other threads can work meanwhile."""
    sizes = [_HEAD.unpack_from(part)[1] for part in parts]
    small = b"".join([part[_HEAD.size :] for part in parts])
    plain = memoryview(_CODEC.decompress(small, sum(sizes)) if parts else b"")
    return (plain[start:end] for start, end in pairwise(accumulate(sizes, initial=0)))


def _taken_apart(plain: memoryview) -> tuple[tuple[str | None, ...], list[memoryview]]:
    """The texts and the tables of a part's sums."""
    start = 4 + int.from_bytes(plain[:4], "little")
    head = json.loads(bytes(plain[4:start]))
    ends = list(accumulate(head["bytes"], initial=start))
    return tuple(head["texts"]), [plain[at:end] for at, end in pairwise(ends)]


def where(mask: Any, values: Any) -> Any:
    return pc.if_else(mask, values, pa.nulls(1, values.type)[0])


def grouped(rows: pa.Table, by: Sequence[str], **made: tuple[str, str]) -> pa.Table:
    """A row for each group of rows; `made` says which column and which function of it."""
    asked = [
        (column, how, pc.VarianceOptions(ddof=0, min_count=0) if how == "variance" else None)
        for column, how in made.values()
    ]
    found = rows.group_by([*by], use_threads=False).aggregate([one if one[2] else one[:2] for one in asked])
    names = {f"{column}_{how}": name for name, (column, how) in made.items()}
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def _generations(rows: pa.Table) -> pa.Table:
    tokens = "completion_tokens"
    found = grouped(
        rows.append_column("one", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)),
        list(BY),
        rollouts=("one", "sum"), scored=("reward", "count"), finite=("finite", "count"), nan=("nan", "sum"),
        not_finite=("not_finite", "sum"), with_tokens=(tokens, "count"), tokens=("tokens", "sum"),
        most_tokens=(tokens, "max"), truncated=("truncated", "sum"), errors=("errors", "sum"),
        with_turns=("turns", "count"), turns=("turns", "sum"), calls=("calls", "sum"),
        failed_calls=("failed_calls", "sum"), reward=("reward", "sum"), reward_min=("reward", "min"),
        reward_max=("reward", "max"), mean=("finite", "mean"), variance=("finite", "variance"),
    )  # fmt: skip
    return _with_squares(found, found["reward_min"], found["reward_max"])


def _groups(rows: pa.Table) -> pa.Table:
    found = grouped(
        rows.append_column("one", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)),
        [*BY, "group"],
        rollouts=("one", "sum"), group_size_max=("group_size", "max"), finite=("finite", "count"),
        mean=("finite", "mean"), variance=("finite", "variance"), least=("finite", "min"), most=("finite", "max"),
    )  # fmt: skip
    return _with_squares(found, found["least"], found["most"])


def _with_squares(found: pa.Table, least: Any, most: Any) -> pa.Table:
    """With the sum of squared distances from the mean: exactly 0 where all are the same, which rounding may hide."""
    squares = pc.multiply(found["variance"], pc.cast(found["finite"], pa.float64()))
    return found.append_column("squares", pc.if_else(pc.equal(least, most), 0.0, squares))


def _with_groups(generations: pa.Table, groups: pa.Table) -> pa.Table:
    """With the figures of their whole groups, and the numbers from the first to the last.

    Where numbers are left out between, a generation has a row for each run of them, of which all but the first say
    nothing else: so it shows whether a group is in two parts, though their numbers alternate.
    """
    ordered = groups.sort_by([(name, "ascending") for name in (*BY, "group")])
    told = ordered.append_column("run", pc.subtract(ordered["group"], integers(range(ordered.num_rows))))
    runs = grouped(told, [*BY, "run"], first_group=("group", "min"), last_group=("group", "max"))
    return _matched(_matched(generations, _of_whole_groups(told), BY), runs, [*BY, "run"])


def _matched(left: pa.Table, right: pa.Table, by: Sequence[str]) -> pa.Table:
    """Each row with what the other table has for it, and what it has besides. Unlike in a join, null is like null."""
    rows = pa.concat_tables([left, right], promote_options="default")
    return grouped(rows, by, **{name: (name, "max") for name in rows.column_names if name not in by})


def _of_whole_groups(groups: pa.Table) -> pa.Table:
    several = pc.greater(groups["finite"], 1)
    spread = pc.sqrt(pc.divide(groups["squares"], pc.cast(groups["finite"], pa.float64())))
    told = groups.append_column("spread", where(several, spread))
    told = told.append_column("flat", pc.and_(several, pc.fill_null(pc.equal(groups["least"], groups["most"]), False)))
    return grouped(
        told, list(BY), groups=("spread", "count"), flat_groups=("flat", "sum"), spreads=("spread", "sum"),
        run=("run", "min"),
    )  # fmt: skip


def _rewards(rows: pa.Table) -> pa.Table:
    """Of each function, without what is missing or not a number."""
    of, name, value = _values_of_functions(rows)
    is_nan = pc.fill_null(pc.is_nan(value), False)
    made = {
        "name": name,
        "value": where(pc.invert(is_nan), value),
        "nan": is_nan,
        "infinite": pc.and_(_is_odd(value), pc.invert(is_nan)),
    }
    told = rows.select(list(BY)).take(of)
    for column, values in made.items():
        told = told.append_column(column, values)
    return grouped(
        told.filter(pc.is_valid(name)), [*BY, "name"],
        values=("value", "count"), nan=("nan", "sum"), infinite=("infinite", "sum"), sum=("value", "sum"),
    )  # fmt: skip


def _cells(table: pa.Table, layout: Mapping[str, str], texts: dict[str | None, int]) -> bytes:
    """A table row by row, eight bytes for each value: so tables are joined in one piece."""
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
    """The tables of parts that have the same texts."""
    made = []
    for place, layout in enumerate(LAYOUT.values()):
        width = len(layout)
        cells = array("q", b"".join(tables[place] for _, tables in parts))
        columns = [_array(cells[at::width], kind, texts) for at, kind in enumerate(layout.values())]
        part = array("q")
        for number, tables in parts:
            part.extend(array("q", [number]) * (len(tables[place]) // 8 // width))
        made.append(pa.table([*columns, _array(part, "whole")], names=[*layout, "_part"]))
    return made


def _array(cells: array[int], kind: str, texts: Sequence[str | None] = ()) -> pa.Array:
    plain = pa.Array.from_buffers(
        pa.float64() if kind == "real" else pa.int64(), len(cells), [None, pa.py_buffer(cells)]
    )
    if kind == "text":
        return _texts(texts).take(plain)
    return where(pc.not_equal(plain, integers([_NULL])[0]), plain) if kind == "whole or null" else plain


def _texts(texts: Sequence[str | None]) -> pa.Array:
    """`pa.array` would import pandas, which takes longer than the figures of a run."""
    pieces = [(text or "").encode() for text in texts]
    ends = array("i", accumulate(map(len, pieces), initial=0))
    there = sum(1 << place for place, text in enumerate(texts) if text is not None)
    buffers = (ends, b"".join(pieces), there.to_bytes(len(texts) // 8 + 1, "little"))
    return pa.StringArray.from_buffers(len(texts), *map(pa.py_buffer, buffers))


def _text_at(footer: bytes, at: int) -> bytes:
    """A text as Thrift has it: its length, seven bits to a byte, and then its bytes."""
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
