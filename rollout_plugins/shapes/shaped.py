"""Rollouts on their way from a framework's own objects into a recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_plugins.store.importers import Found


@dataclass(frozen=True, slots=True)
class Asked:
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
class Taken:
    """One batch, safe from what the framework does with its objects next."""

    build: Callable[[], Sequence[Found | Lost]]
    """Makes the rollouts, on the worker thread."""
    count: int
    """How many it will make."""
    bytes: int = 0
    """Rough size of what is held until then."""
    reward_names: tuple[str, ...] = ()
    """Names of the rewards, for columns of their own."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A framework's rollouts, not looked at yet: what the functions named `rollouts` return."""

    take: Callable[[Asked], Taken]
    """Copies what may change, on the thread that records."""


def each(convert: Callable[[Any], Found | Lost], items: Sequence[Any]) -> list[Found | Lost]:
    """What each item becomes; one that breaks the conversion costs itself alone."""
    return [_one(convert, item) for item in items]


def _one(convert: Callable[[Any], Found | Lost], item: Any) -> Found | Lost:
    if isinstance(item, Lost):
        return item
    try:
        return convert(item)
    except (Exception, SystemExit):
        return UNREADABLE


def bytes_of(items: int, text: int) -> int:
    """Rough size of so many rollouts with so much text."""
    return 256 * items + text
