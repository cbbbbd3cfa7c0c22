"""Rollouts on their way from a framework's own objects into a recorder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollout_hookspecs import Rollout


@dataclass(slots=True)
class Unplaced:
    """A rollout as a format holds it; its id and its place in the run are decided later."""

    rollout: Rollout
    group: Any = None
    """What all answers to the same prompt of the same generation have in common."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the recorder wants of a shape."""

    tokens: bool = False
    """Whether token ids, masks and log-probabilities are kept."""
    checked: bool = False
    """Whether what looks like a mistake is raised, as a SetupError; later it costs only what it spoils."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands where a rollout would be that cannot be kept, or never was one."""

    reason: str


REJECTED = Lost("rejected")
UNREADABLE = Lost("unreadable")


@dataclass(frozen=True, slots=True)
class Held:
    """One batch, safe from what the framework does with its objects next."""

    build: Callable[[], Sequence[Unplaced | Lost]]
    """Makes the rollouts, on the worker thread."""
    count: int
    """How many it will make."""
    bytes: int = 0
    """Rough size of what is held until then."""
    reward_names: tuple[str, ...] = ()
    """Names of the rewards, for columns of their own."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A framework's rollouts, not looked at yet: what the functions named `rollouts` return."""

    take: Callable[[Wanted], Held]
    """Copies what may change, on the thread that records."""


def each(convert: Callable[[Any], Unplaced | Lost], items: Sequence[Any]) -> list[Unplaced | Lost]:
    """What each item becomes; one that breaks the conversion costs itself alone."""
    return [_one(convert, item) for item in items]


def _one(convert: Callable[[Any], Unplaced | Lost], item: Any) -> Unplaced | Lost:
    if isinstance(item, Lost):
        return item
    try:
        return convert(item)
    except (Exception, SystemExit):
        return UNREADABLE


def bytes_of(items: int, text: int) -> int:
    """Rough size of so many rollouts with so much text."""
    return 256 * items + text


def placed(batch: Sequence[Unplaced], keys: Sequence[Any]) -> list[Rollout]:
    """The rollouts of one generation with their places; those of one key are a group."""
    groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    sizes = Counter(keys)
    return [
        replace(found.rollout, index=index, group=groups[key], group_size=sizes[key])
        for index, (found, key) in enumerate(zip(batch, keys, strict=True))
    ]
