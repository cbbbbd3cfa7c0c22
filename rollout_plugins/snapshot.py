"""Copy what a trainer holds, fast enough for the training thread: containers are copied, leaves are shared.

The copy is a tree of bounded size: what is nested too deep, or more than anybody wrote by hand or model, becomes a
marked `Placeholder`. So a cycle, or lists that share each other a million times over, cost a moment, never the run.
"""

from __future__ import annotations

from typing import Any

from rollout_hookspecs import Placeholder

MAX_DEPTH = 200
MAX_ITEMS = 4_000_000
_ATOMS = frozenset({int, float, bool, type(None)})


class Snapshot:
    """Copies values and adds up a rough size of what it copied."""

    __slots__ = ("_left", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._left = 0

    def copy(self, value: Any) -> Any:
        """A copy that later changes to `value` do not show in."""
        self._left = MAX_ITEMS
        try:
            return self._copy(value, 0)
        except RecursionError:  # the trainer's own stack was deep already
            return self._cut(value, MAX_DEPTH + 1)

    def _copy(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self._list(value, depth)
        if kind is str:
            self.bytes += len(value)
            return value
        if kind in _ATOMS:
            return value
        return self._other(value, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        self._left -= 1 + len(value)
        if depth > MAX_DEPTH or self._left < 0:
            return self._cut(value, depth)
        copied = value.copy()
        size = 64
        for key, item in value.items():
            kind = type(item)
            if kind is str:
                size += len(item)
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
        if depth > MAX_DEPTH or self._left < 0:
            return self._cut(value, depth)
        copied = list(value)
        size = 64 + 8 * len(copied)
        for index, item in enumerate(copied):
            kind = type(item)
            if kind is dict:
                copied[index] = self._dict(item, depth + 1)
            elif kind is str:
                size += len(item)
            elif kind is list:
                copied[index] = self._list(item, depth + 1)
            elif kind not in _ATOMS:
                copied[index] = self._other(item, depth + 1)
        self.bytes += size
        return copied

    def _cut(self, value: Any, depth: int) -> Placeholder:
        why = "nested too deep" if depth > MAX_DEPTH else "too many items"
        return Placeholder(type=type(value).__name__, where="", why=why, preview=f"{len(value)} items")

    def _other(self, value: Any, depth: int) -> Any:
        """Subclasses of containers become plain ones; everything else is shared as it is."""
        try:
            if isinstance(value, dict):
                return self._dict(dict(value), depth)
            if isinstance(value, list):
                return self._list(list(value), depth)
            if type(value) is tuple:
                copied = self._list(value, depth)
                return tuple(copied) if type(copied) is list else copied
            self.bytes += _leaf_bytes(value)
        except (Exception, SystemExit):  # an object that objects even to being looked at is kept by reference
            self.bytes += 64
        return value


def _leaf_bytes(value: Any) -> int:
    """Size of a picture, tensor or byte string, without touching its data."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    size = getattr(value, "size", None)
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return int(size[0] * size[1] * 4)
    return 64
