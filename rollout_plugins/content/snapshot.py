"""Copy what a trainer holds, fast enough for the training thread: containers are copied, leaves are shared.

A value that holds itself, or the same list many times over, would be endless; it is copied once more with each
container only once, and a marked `Placeholder` where it came again. So it costs a moment, never the run.
"""

from __future__ import annotations

from array import array
from sys import getsizeof
from typing import Any

from rollout_hookspecs import Placeholder

from rollout_plugins.content.limits import AGAIN, COPIED_ITEMS, KEPT_DEPTH, TOO_DEEP, EndlessError

_ATOMS = frozenset({int, float, bool, type(None)})
#: What a float takes, and an int that Python does not keep anyway.
_FLOAT, _INT = 24, 32
_LARGE = 512


class Snapshot:
    """Copies values and adds up what they take in memory; what several of them share, once."""

    __slots__ = ("_left", "_seen", "_shared", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._shared: set[int] = set()
        self._left = 0
        self._seen: dict[int, Any] | None = None

    def copy(self, value: Any) -> Any:
        """A copy that later changes to `value` do not show in."""
        before = self.bytes
        self._left, self._seen = COPIED_ITEMS, None
        try:
            return self._copy(value, 0)
        except EndlessError:
            self.bytes = before
            self._shared.clear()
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
        if (depth > KEPT_DEPTH or self._left < 0) and (why := self._objection(value, depth)):
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
        if (depth > KEPT_DEPTH or self._left < 0) and (why := self._objection(value, depth)):
            return _lost(value, why)
        copied = list(value)
        size = getsizeof(copied)
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
        return copied

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
        if depth > KEPT_DEPTH:
            return TOO_DEEP
        if self._seen is None:
            raise EndlessError
        if id(value) in self._seen:
            return AGAIN
        self._seen[id(value)] = value
        return ""

    def _other(self, value: Any, depth: int) -> Any:
        """Subclasses of containers become plain ones; everything else is shared as it is."""
        try:
            if isinstance(value, (dict, list)):
                if self._seen is not None and (why := self._objection(value, depth)):
                    return _lost(value, why)
                return self._dict(dict(value), depth) if isinstance(value, dict) else self._list(list(value), depth)
            if type(value) is tuple:
                copied = self._list(value, depth)
                return tuple(copied) if type(copied) is list else copied
            self.bytes += _leaf_bytes(value) if self._is_new(value) else 0
        except (Exception, SystemExit):  # an object that objects even to being looked at is kept by reference
            self.bytes += 64
        return value


def _lost(value: Any, why: str) -> Placeholder:
    return Placeholder(type=type(value).__name__, where="", why=why, preview=f"{len(value)} items")


def _leaf_bytes(value: Any) -> int:
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
