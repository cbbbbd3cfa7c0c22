"""Copy a trainer's data, fast enough for the training thread.

Containers and mutable leaves are copied. Texts, numbers and objects that no file can store are shared, and so are
large arrays and those on a device. A value that contains itself, or the same list many times, is copied with each
container only once and a `Placeholder` wherever it repeats, so that the copy takes a moment and always ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from sys import getsizeof
from typing import Any

from rollout_hookspecs import Placeholder

from rollout_plugins.content.hashing import is_array, is_loaded, is_pil, is_tensor
from rollout_plugins.content.limits import COPIED_ITEMS, REPEATED, STORED_DEPTH, TOO_DEEP, TooManyItemsError

_ATOMS = frozenset({int, float, bool, type(None)})
#: Bytes of a float, and of an int that Python does not cache.
_FLOAT, _INT = 24, 32
_LARGE = 512
#: Larger arrays are neither images nor tokens.
_LARGEST_COPIED = 1 << 26


class Snapshot:
    """Copies values and adds up the memory of the copies. Shared objects count once."""

    __slots__ = ("_budget", "_leaves", "_seen", "_shared", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._shared: set[int] = set()
        self._leaves: dict[int, tuple[Any, Any]] = {}
        self._budget = 0
        self._seen: dict[int, Any] | None = None

    def copy(self, value: Any) -> Any:
        """Return a copy that later changes of `value` do not affect."""
        before = self.bytes
        self._budget, self._seen = COPIED_ITEMS, None
        try:
            return self._copy(value, 0)
        except TooManyItemsError:
            self.bytes = before
            self._shared.clear()
            self._leaves.clear()
        except RecursionError:  # the trainer's own stack was already deep
            return _lost(value, TOO_DEEP)
        self._budget, self._seen = -1, {}
        return self._copy(value, 0)

    def _copy(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self._list(value, depth)
        if kind is str:
            self.bytes += self._text(value)
            return value
        if kind in _ATOMS:
            return value
        return self._other(value, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        self._budget -= 1 + len(value)
        if (depth > STORED_DEPTH or self._budget < 0) and (why := self._objection(value, depth)):
            return _lost(value, why)
        copied = value.copy()
        size = getsizeof(copied)
        for key, item in value.items():
            kind = type(item)
            if kind is str:
                size += self._text(item)
            elif kind is float:
                size += _FLOAT
            elif kind is dict:
                copied[key] = self._dict(item, depth + 1)
            elif kind is list:
                copied[key] = self._list(item, depth + 1)
            elif kind not in _ATOMS:
                copied[key] = self._other(item, depth + 1)
        self.bytes += size
        return copied

    def _list(self, value: Any, depth: int) -> Any:
        self._budget -= 1 + len(value)
        if (depth > STORED_DEPTH or self._budget < 0) and (why := self._objection(value, depth)):
            return _lost(value, why)
        copied = list(value)
        self.bytes += getsizeof(copied)
        if len(copied) > _LARGE and _ATOMS.issuperset(map(type, copied)):
            self.bytes += _INT * len(set(copied[:_LARGE])) * len(copied) // _LARGE
        else:
            self._items(copied, depth)
        return copied

    def _items(self, copied: list[Any], depth: int) -> None:
        """Copy the items of a list, in their places."""
        size = 0
        for index, item in enumerate(copied):
            kind = type(item)
            if kind is int:
                if not -6 < item < 257:
                    size += _INT
            elif kind is float:
                size += _FLOAT
            elif kind is dict:
                copied[index] = self._dict(item, depth + 1)
            elif kind is str:
                size += self._text(item)
            elif kind is list:
                copied[index] = self._list(item, depth + 1)
            elif kind not in _ATOMS:
                copied[index] = self._other(item, depth + 1)
        self.bytes += size

    def _text(self, text: str) -> int:
        """Return the size of a text, or 0 if it was counted before: the rollouts of a group share their prompt."""
        size = getsizeof(text)
        return size if size < _LARGE or self._is_new(text) else 0

    def _is_new(self, value: Any) -> bool:
        """Return whether the value was not copied before. Copied values are alive, so ids are unique."""
        before = len(self._shared)
        self._shared.add(id(value))
        return len(self._shared) > before

    def _objection(self, value: Any, depth: int) -> str:
        """Return why a container is not copied here; empty if it is."""
        if depth > STORED_DEPTH:
            return TOO_DEEP
        if self._seen is None:
            raise TooManyItemsError
        if id(value) in self._seen:
            return REPEATED
        self._seen[id(value)] = value
        return ""

    def _other(self, value: Any, depth: int) -> Any:
        """Copy a value of any other type. Subclasses of containers and other mappings become plain containers."""
        try:
            if isinstance(value, (dict, list, Mapping)):
                if self._seen is not None and (why := self._objection(value, depth)):
                    return _lost(value, why)
                return self._list(list(value), depth) if isinstance(value, list) else self._dict(dict(value), depth)
            if isinstance(value, tuple):
                copied = self._list(value, depth)
                return tuple(copied) if type(copied) is list else copied
            return self._leaf(value)
        except (Exception, SystemExit):  # an object that raises when its type is checked is shared
            self.bytes += 64
        return value

    def _leaf(self, value: Any) -> Any:
        """Copy a leaf once, so that an object in several containers stays one object."""
        if id(value) not in self._leaves:
            self._leaves[id(value)] = value, _own(value)
            self.bytes += leaf_bytes(value)
        return self._leaves[id(value)][1]


def _own(value: Any) -> Any:
    """Return a copy of a mutable leaf. An image that was opened from a file is returned unmodified."""
    if isinstance(value, bytearray):
        return bytearray(value)
    if isinstance(value, array):
        return value[:]
    if is_pil(value):
        return value.copy() if is_loaded(value) and value.format is None else value
    if is_tensor(value):
        return value.detach().clone() if value.shape == () or _is_small(value) else value
    return value.copy() if is_array(value) and _is_small(value) else value


def _is_small(value: Any) -> bool:
    """Return whether the array is in this process's memory and quick to copy."""
    device = getattr(value, "device", "cpu")
    return value.nbytes < _LARGEST_COPIED and getattr(device, "type", device) == "cpu"


def _lost(value: Any, why: str) -> Placeholder:
    return Placeholder(type=type(value).__name__, where="", why=why, preview=f"{len(value)} items")


def leaf_bytes(value: Any) -> int:
    """Return the size of an image, tensor or byte string without reading its data."""
    if isinstance(value, (bytes, bytearray, array)):
        return getsizeof(value)
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    size = getattr(value, "size", None)
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return int(size[0] * size[1] * 4)
    return 64
