"""Limits of depth and size for everything that traverses values: copies, hashes, JSON, and what sinks receive."""

from __future__ import annotations

from typing import Any

STORED_DEPTH = 200
"""Levels that copies and the store contain."""
HASHED_DEPTH = 240
"""Levels that are hashed and rewritten: those of stored values plus the records around them."""
SENT_DEPTH = 48
"""Levels that sinks receive."""
COPIED_ITEMS = 2_000_000
STORED_ITEMS = 1_000_000
SENT_ITEMS = 200_000

TOO_DEEP = "nested too deep"
CYCLE = "contains itself"
REPEATED = "repeated in a value with too many items"


class TooManyItemsError(BaseException):
    """A value has more items than any real one, perhaps because it contains the same list many times."""


class Nesting:
    """The containers that a traversal is inside of, to detect cycles and excessive depth."""

    __slots__ = ("_deepest", "_open")

    def __init__(self, deepest: int) -> None:
        self._deepest = deepest
        self._open: set[int] = set()

    def objection(self, value: Any, depth: int) -> str:
        """Return why the traversal must not enter a container; empty if it may."""
        if id(value) in self._open:
            return CYCLE
        return TOO_DEEP if depth >= self._deepest else ""

    def enter(self, value: Any) -> None:
        self._open.add(id(value))

    def leave(self, value: Any) -> None:
        self._open.discard(id(value))
