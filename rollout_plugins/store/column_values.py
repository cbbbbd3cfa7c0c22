"""Values on their way into a column: what it takes as it is, what stands in for the rest, and what is noted of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, repeat
from operator import is_not
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Placeholder

from rollout_plugins.content.exact_json import (
    INSPECTION_ERRORS,
    encode_all,
    is_valid_unicode,
    placeholder_for,
    replace_surrogates,
)
from rollout_plugins.content.messages import text_of
from rollout_plugins.content.numbers import BOOLEAN, INTEGER, REAL, SMALL_INTEGER, Kind
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.store.schema import SCALARS, TEXT

#: Characters on average from which on texts are long, and about how many bytes of such are copied at once.
_LONG, _AT_ONCE = 200, 2**16


class Row:
    """A rollout on its way into columns, and what was noticed about it."""

    __slots__ = ("_drafts", "_place", "lost", "marks", "rest")

    def __init__(self, drafts: RolloutColumns, place: int, lost: list[Placeholder]) -> None:
        self._drafts = drafts
        self._place = place
        self.lost = lost
        self.marks: dict[str, str] = {}
        self.rest: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """What a field holds."""
        return self._drafts[name][self._place]

    def lose(self, value: Any, where: str, why: str) -> Placeholder:
        """Note a value that its column cannot take."""
        placeholder = placeholder_for(value, where, why)
        self.lost.append(placeholder)
        self.marks[f"lost:{placeholder.where}"] = str(placeholder)
        return placeholder

    def mapping(self, name: str) -> dict[Any, Any]:
        """A field that must hold a mapping."""
        value = self.value(name)
        if type(value) is dict:
            return value
        try:
            if isinstance(value, Mapping):
                return dict(value)
        except INSPECTION_ERRORS:
            pass
        self.lose(value, name, "not a mapping")
        return {}

    def sequence(self, name: str, kind: type) -> list[Any]:
        """A field that must hold records of one kind."""
        value = self.value(name)
        if not is_a(value, (list, tuple)):
            self.lose(value, name, "not a list")
            return []
        kept = []
        for index, item in enumerate(value):
            if is_a(item, kind):
                kept.append(item)
            else:
                self.lose(item, f"{name}[{index}]", f"not of class {kind.__name__}")
        return kept

    def messages(self, name: str) -> Sequence[Any]:
        """Prompt or completion; one that is not a list is taken for its only message."""
        value = self.value(name)
        try:
            if is_a(value, (list, tuple)):
                return tuple(value)
        except INSPECTION_ERRORS:  # a list that does not list
            value = None
        if value is None:
            self.lose(value, name, "not a list")
            return ()
        return (value,)

    def fit(self, value: Any, kind: Any, where: str, default: Any = None) -> Any:
        """The value as its column takes it. Text that no file takes stands in `rest`; another kind is lost."""
        if value is None and default is None:
            return None
        try:
            return _COLUMNS[kind].convert(value)
        except INSPECTION_ERRORS:
            if kind == TEXT and where in SCALARS and type(value) is str:
                self.rest[where] = value
                return readable(value)
            found = self.lose(value, where, _COLUMNS[kind].otherwise)
            return found.preview or None if kind == TEXT and default is None else default


def is_a(value: Any, kind: Any) -> bool:
    """`isinstance` for objects that object to it."""
    try:
        return isinstance(value, kind)
    except INSPECTION_ERRORS:
        return False


def json_of(values: Sequence[dict[Any, Any]], lost: list[Placeholder]) -> pa.Array:
    """A column of JSON; null where there is nothing to say."""
    texts = iter(encode_all([value for value in values if value], lost))
    return array_of([next(texts) if value else None for value in values], TEXT)


def list_of(kind: Any, starts: Sequence[int], columns: Mapping[str, Any]) -> pa.ListArray:
    """A list column from flat child columns, and where each row's list begins, with the end of the last."""
    offsets = pa.array(starts, pa.int32())
    if not starts[-1]:  # as of most batches that call no tools, and show no images
        return pa.ListArray.from_arrays(offsets, _none_of(kind))
    found = [(columns[field.name], field.type) for field in kind]
    arrays = [one if isinstance(one, pa.Array) else array_of(one, kind) for one, kind in found]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(arrays, fields=list(kind)))


@cache
def _none_of(kind: Any) -> pa.StructArray:
    return pa.nulls(0, kind)


def array_of(values: Sequence[Any], kind: Any) -> pa.Array:
    """An array of values, quickly where there are none: most columns of small batches are empty."""
    if not any(map(is_not, values, repeat(None))):
        return pa.nulls(len(values), kind)
    if kind == TEXT and sum(map(len, filter(None, values))) > _LONG * len(values):
        return _long_texts(values)
    return pa.array(values, kind)


def _long_texts(values: Sequence[Any]) -> pa.Array:
    """An array of long texts, in just the memory that it takes: Arrow's builder doubles its own when it grows."""
    known = pa.array([text is not None for text in values]).buffers()[1] if None in values else None
    texts = values if known is None else [text or "" for text in values]
    is_plain = all(map(str.isascii, texts))
    held: Sequence[Any] = texts if is_plain else list(map(str.encode, texts))
    ends = array("q", accumulate(map(len, held), initial=0))
    data, step = pa.allocate_buffer(ends[-1]), _AT_ONCE * len(held) // ends[-1] or 1
    with memoryview(data).cast("B") as view:
        for at in range(0, len(held), step):
            some = held[at : at + step]
            view[ends[at] : ends[at + len(some)]] = "".join(some).encode() if is_plain else b"".join(some)
    return pa.Array.from_buffers(TEXT, len(held), [known, pa.py_buffer(ends), data])


def starts_of(counts: Iterable[int]) -> list[int]:
    """Where each list begins, of so many items one after the other; and the end of the last."""
    return list(accumulate(counts, initial=0))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return str.__str__(value)


_COLUMNS: dict[Any, Kind] = {
    pa.int64(): INTEGER,
    pa.int32(): SMALL_INTEGER,
    pa.float64(): REAL,
    TEXT: Kind(str, _string, "not text"),
    pa.bool_(): BOOLEAN,
}


def scalars(
    values: Sequence[Any], kind: Any, default: Any, fit: Callable[[int, Any], Any] | None = None
) -> pa.Array | None:
    """A column of values that are what it takes; each goes through `fit` where one is not. Without that, None."""
    exact = _COLUMNS[kind].exact
    if set(map(type, values)) <= {exact, exact if default is not None else type(None)}:
        try:
            return array_of(values, kind)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass  # an integer beyond 64 bits, or a lone surrogate
    return None if fit is None else pa.array([fit(at, value) for at, value in enumerate(values)], kind)


def readable(value: Any) -> str | None:
    """Readable text for a column; the exact value is kept elsewhere when this is not it."""
    if value is None:
        return None
    try:
        text = value if type(value) is str else text_of(value) if _is_bounded(value) else _VAST
        return text if is_valid_unicode(text) else replace_surrogates(text)
    except INSPECTION_ERRORS:  # an object that objects to being looked at
        return None


_VAST = "[too much to show]"


def _is_bounded(value: Any) -> bool:
    """Whether a value ends soon: lists that hold each other many times over take forever to read out."""
    left, unread = 100_000, [value]
    while unread and left > 0:
        item = unread.pop()
        if isinstance(item, (list, tuple, dict)):
            left -= 1 + len(item)
            unread += item.values() if isinstance(item, dict) else item
    return not unread


def is_exact(value: Any) -> bool:
    """Whether a column of text takes the value as it is."""
    return type(value) is str and (value.isascii() or is_valid_unicode(value))
