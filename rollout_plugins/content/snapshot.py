"""Copy what a trainer holds, fast enough for the training thread: containers, and what else may be written to.

Texts, numbers and objects that no file holds are shared, and so are large arrays and those on a device.

A value that holds itself, or the same list many times over, would be endless; it is copied once more with each
container only once, and a marked `Placeholder` where it came again. So it costs a moment, never the run.
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
#: What a float takes, and an int that Python does not keep anyway.
_FLOAT, _INT = 24, 32
_LARGE = 512
#: Of arrays: none that large is a picture or tokens.
_LARGEST_COPIED = 1 << 26


class Snapshot:
    """Copies values and adds up what they take in memory; what several of them share, once."""

    __slots__ = ("_leaves", "_left", "_seen", "_shared", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._shared: set[int] = set()
        self._leaves: dict[int, tuple[Any, Any]] = {}
        self._left = 0
        self._seen: dict[int, Any] | None = None

    def copy(self, value: Any) -> Any:
        """A copy that later changes to `value` do not show in."""
        before = self.bytes
        self._left, self._seen = COPIED_ITEMS, None
        try:
            return self._copy(value, 0)
        except TooManyItemsError:
            self.bytes = before
            self._shared.clear()
            self._leaves.clear()
        except RecursionError:  # the trainer's own stack was deep already
            return _lost(value, TOO_DEEP)
        self._left, self._seen = -1, {}
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
        self._left -= 1 + len(value)
        if (depth > STORED_DEPTH or self._left < 0) and (why := self._objection(value, depth)):
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
        self._left -= 1 + len(value)
        if (depth > STORED_DEPTH or self._left < 0) and (why := self._objection(value, depth)):
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
        """What is new of it: siblings of a group share their prompt."""
        size = getsizeof(text)
        return size if size < _LARGE or self._is_new(text) else 0

    def _is_new(self, value: Any) -> bool:
        """Whether it was not copied before; what was is alive, so no other has its id."""
        known = len(self._shared)
        self._shared.add(id(value))
        return len(self._shared) > known

    def _objection(self, value: Any, depth: int) -> str:
        """Why a container is not copied here; empty when it is."""
        if depth > STORED_DEPTH:
            return TOO_DEEP
        if self._seen is None:
            raise TooManyItemsError
        if id(value) in self._seen:
            return REPEATED
        self._seen[id(value)] = value
        return ""

    def _other(self, value: Any, depth: int) -> Any:
        """Subclasses of containers become plain ones, and so do other mappings."""
        try:
            if isinstance(value, (dict, list, Mapping)):
                if self._seen is not None and (why := self._objection(value, depth)):
                    return _lost(value, why)
                return self._list(list(value), depth) if isinstance(value, list) else self._dict(dict(value), depth)
            if isinstance(value, tuple):
                copied = self._list(value, depth)
                return tuple(copied) if type(copied) is list else copied
            return self._leaf(value)
        except (Exception, SystemExit):  # an object that objects even to being looked at is kept by reference
            self.bytes += 64
        return value

    def _leaf(self, value: Any) -> Any:
        """What several containers share stays one."""
        if id(value) not in self._leaves:
            self._leaves[id(value)] = value, _own(value)
            self.bytes += leaf_bytes(value)
        return self._leaves[id(value)][1]


def _own(value: Any) -> Any:
    """A copy of what its owner may write to; a picture that was opened from a file stays what it is."""
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
    """Whether it is copied in a moment, and in this process's memory."""
    device = getattr(value, "device", "cpu")
    return value.nbytes < _LARGEST_COPIED and getattr(device, "type", device) == "cpu"


def _lost(value: Any, why: str) -> Placeholder:
    return Placeholder(type=type(value).__name__, where="", why=why, preview=f"{len(value)} items")


def leaf_bytes(value: Any) -> int:
    """Size of a picture, tensor or byte string, without touching its data."""
    if isinstance(value, (bytes, bytearray, array)):
        return getsizeof(value)
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    size = getattr(value, "size", None)
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return int(size[0] * size[1] * 4)
    return 64
