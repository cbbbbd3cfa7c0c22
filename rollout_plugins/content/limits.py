"""How deep and how large a value may be, for everything that walks values: copies, hashes, JSON, what sinks get."""

from __future__ import annotations

from typing import Any

STORED_DEPTH = 200
"""Levels that copies and the store keep."""
HASHED_DEPTH = 240
"""Levels that are hashed and rewritten: what is kept, and the records around it."""
SENT_DEPTH = 48
"""Levels that sinks are given."""
COPIED_ITEMS = 2_000_000
STORED_ITEMS = 1_000_000
SENT_ITEMS = 200_000

TOO_DEEP = "nested too deep"
CYCLE = "contains itself"
REPEATED = "the same again in a vast value"


class TooManyItemsError(BaseException):
    """More items than people write by hand or by model: perhaps the same ones again and again."""


class Nesting:
    """The containers that a walk is inside of. Notices one that holds itself, or lies too deep."""

    __slots__ = ("_deepest", "_open")

    def __init__(self, deepest: int) -> None:
        self._deepest = deepest
        self._open: set[int] = set()

    def objection(self, value: Any, depth: int) -> str:
        """Why the walk must not go into a container; empty when it may."""
        if id(value) in self._open:
            return CYCLE
        return TOO_DEEP if depth >= self._deepest else ""

    def enter(self, value: Any) -> None:
        self._open.add(id(value))

    def leave(self, value: Any) -> None:
        self._open.discard(id(value))
