"""Have something of ours stand in a trainer's place for the length of one call: a function, an attribute, an entry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class StandIn:
    """Passes for the function it stands for, except that a call goes through `around(function, *args, **kwargs)`.

    Trainers' subclasses look at more of a function than its result: its signature, its attributes, what it equals.
    """

    __slots__ = ("_stand_in_around", "_stands_for")

    def __init__(self, function: Any, around: Callable[..., Any]) -> None:
        object.__setattr__(self, "_stands_for", function)
        object.__setattr__(self, "_stand_in_around", around)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stand_in_around(self._stands_for, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stands_for, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stands_for, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._stands_for, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._stands_for == itself(other))

    def __hash__(self) -> int:
        return hash(self._stands_for)

    def __repr__(self) -> str:
        return repr(self._stands_for)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return itself, (self._stands_for,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._stands_for)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._stands_for)


class AsyncStandIn(StandIn):
    """For what has to be awaited, and may be known by its `__call__` alone."""

    __slots__ = ()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._stand_in_around(self._stands_for, *args, **kwargs)


def itself(function: Any) -> Any:
    """What a stand-in stands for; anything else as it is."""
    return object.__getattribute__(function, "_stands_for") if issubclass(type(function), StandIn) else function


@contextmanager
def swapped(target: Any, **values: Any) -> Iterator[None]:
    """Have other values in attributes of the trainer for one call. What the call changes there stays changed.

    A list of stand-ins has one for each item of the trainer's list, which gets its own items back.
    """
    before = {name: getattr(target, name) for name in values}
    items: dict[int, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            items |= {id(ours): theirs for ours, theirs in zip(tuple(value), before[name], strict=True)}
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in values.items():
            now = getattr(target, name, None)
            if isinstance(now, list):
                _put_back(now, before[name] if now is value else now, items)
            if now is value:
                setattr(target, name, before[name])


def _put_back(now: list[Any], into: list[Any], theirs: Mapping[int, Any]) -> None:
    """The items that `now` has, without stand-ins."""
    items = [theirs.get(id(item), item) for item in now]
    if [*map(id, items)] != [*map(id, into)]:
        into[:] = items


@contextmanager
def added(values: dict[str, Any], more: Mapping[str, Any]) -> Iterator[None]:
    """Add to a dictionary of the trainer's for one call. What the call itself changes in it stays changed."""
    before = {name: values[name] for name in more if name in values}
    values.update(more)
    try:
        yield
    finally:
        for name in more:
            if name in before:
                values[name] = before[name]
            else:
                values.pop(name, None)
