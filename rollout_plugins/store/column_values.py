"""Check values before they enter a column, replace those that it cannot hold, and record what was lost."""

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

#: The average length from which texts count as long, and how many bytes of long texts are copied at once.
_LONG, _AT_ONCE = 200, 2**16


class Row:
    """A rollout that is being converted to columns, with the marks added on the way."""

    __slots__ = ("_drafts", "_place", "lost", "marks", "rest")

    def __init__(self, drafts: RolloutColumns, place: int, lost: list[Placeholder]) -> None:
        self._drafts = drafts
        self._place = place
        self.lost = lost
        self.marks: dict[str, str] = {}
        self.rest: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """Return the value of a field."""
        return self._drafts[name][self._place]

    def lose(self, value: Any, where: str, why: str) -> Placeholder:
        """Record a value that its column cannot hold, and return a placeholder for it."""
        placeholder = placeholder_for(value, where, why)
        self.lost.append(placeholder)
        self.marks[f"lost:{placeholder.where}"] = str(placeholder)
        return placeholder

    def mapping(self, name: str) -> dict[Any, Any]:
        """Return a field that must be a mapping, as a dict."""
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
        """Return a field that must be a sequence of records of type `kind`, as a list."""
        value = self.value(name)
        if not is_a(value, (list, tuple)):
            self.lose(value, name, "not a list")
            return []
        items = []
        for index, item in enumerate(value):
            if is_a(item, kind):
                items.append(item)
            else:
                self.lose(item, f"{name}[{index}]", f"not of class {kind.__name__}")
        return items

    def messages(self, name: str) -> Sequence[Any]:
        """Return a prompt or completion; a value that is not a list is treated as its only message."""
        value = self.value(name)
        try:
            if is_a(value, (list, tuple)):
                return tuple(value)
        except INSPECTION_ERRORS:  # a broken list
            value = None
        if value is None:
            self.lose(value, name, "not a list")
            return ()
        return (value,)

    def fit(self, value: Any, kind: Any, where: str, default: Any = None) -> Any:
        """Return the value if its column can hold it.

        Text that Parquet cannot hold goes to `rest`. A value of another type is lost and replaced by `default`.
        """
        if value is None and default is None:
            return None
        try:
            return _COLUMNS[kind].convert(value)
        except INSPECTION_ERRORS:
            if kind == TEXT and where in SCALARS and type(value) is str:
                self.rest[where] = value
                return readable(value)
            placeholder = self.lose(value, where, _COLUMNS[kind].otherwise)
            return placeholder.preview or None if kind == TEXT and default is None else default


def is_a(value: Any, kind: Any) -> bool:
    """Return `isinstance(value, kind)`, or False if the object raises an error."""
    try:
        return isinstance(value, kind)
    except INSPECTION_ERRORS:
        return False


def json_of(values: Sequence[dict[Any, Any]], lost: list[Placeholder]) -> pa.Array:
    """Return a column of JSON, with null for empty dicts."""
    texts = iter(encode_all([value for value in values if value], lost))
    return array_of([next(texts) if value else None for value in values], TEXT)


def list_of(kind: Any, starts: Sequence[int], columns: Mapping[str, Any]) -> pa.ListArray:
    """Return a list column from flat child columns; `starts` has the offset of each list and the end of the last."""
    offsets = pa.array(starts, pa.int32())
    if not starts[-1]:  # most batches have no tool calls or no images
        return pa.ListArray.from_arrays(offsets, _none_of(kind))
    children = [(columns[field.name], field.type) for field in kind]
    arrays = [child if isinstance(child, pa.Array) else array_of(child, kind) for child, kind in children]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(arrays, fields=list(kind)))


@cache
def _none_of(kind: Any) -> pa.StructArray:
    return pa.nulls(0, kind)


def array_of(values: Sequence[Any], kind: Any) -> pa.Array:
    """Return an array of values. A column without values, as in most small batches, takes a shortcut."""
    if not any(map(is_not, values, repeat(None))):
        return pa.nulls(len(values), kind)
    if kind == TEXT and sum(map(len, filter(None, values))) > _LONG * len(values):
        return _long_texts(values)
    return pa.array(values, kind)


def _long_texts(values: Sequence[Any]) -> pa.Array:
    """Return an array of long texts in exactly the memory it needs, because Arrow's builder doubles its buffer."""
    validity = pa.array([text is not None for text in values]).buffers()[1] if None in values else None
    texts = values if validity is None else [text or "" for text in values]
    is_plain = all(map(str.isascii, texts))
    held: Sequence[Any] = texts if is_plain else list(map(str.encode, texts))
    ends = array("q", accumulate(map(len, held), initial=0))
    data, step = pa.allocate_buffer(ends[-1]), _AT_ONCE * len(held) // ends[-1] or 1
    with memoryview(data).cast("B") as view:
        for at in range(0, len(held), step):
            some = held[at : at + step]
            view[ends[at] : ends[at + len(some)]] = "".join(some).encode() if is_plain else b"".join(some)
    return pa.Array.from_buffers(TEXT, len(held), [validity, pa.py_buffer(ends), data])


def starts_of(counts: Iterable[int]) -> list[int]:
    """Return the offset of each of several contiguous lists of these lengths, and the end of the last."""
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
    """Return a column of values. If some do not fit, each goes through `fit`, or without `fit` the result is None."""
    exact = _COLUMNS[kind].exact
    if set(map(type, values)) <= {exact, exact if default is not None else type(None)}:
        try:
            return array_of(values, kind)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass  # an integer beyond 64 bits, or a lone surrogate
    return None if fit is None else pa.array([fit(at, value) for at, value in enumerate(values)], kind)


def readable(value: Any) -> str | None:
    """Return readable text for a column; if it is not exact, the exact value is stored elsewhere."""
    if value is None:
        return None
    try:
        text = value if type(value) is str else text_of(value) if _is_bounded(value) else _VAST
        return text if is_valid_unicode(text) else replace_surrogates(text)
    except INSPECTION_ERRORS:  # an object that cannot be inspected
        return None


_VAST = "[too much to show]"


def _is_bounded(value: Any) -> bool:
    """Return False for nested lists that refer to each other so often that they take forever to print."""
    left, unread = 100_000, [value]
    while unread and left > 0:
        item = unread.pop()
        if isinstance(item, (list, tuple, dict)):
            left -= 1 + len(item)
            unread += item.values() if isinstance(item, dict) else item
    return not unread


def is_exact(value: Any) -> bool:
    """Return True if a column of text holds the value exactly."""
    return type(value) is str and (value.isascii() or is_valid_unicode(value))
