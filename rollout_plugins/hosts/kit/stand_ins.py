"""Replace a trainer's function, attribute or dictionary entry by a stand-in for the duration of one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any


class Standing:
    """A stand-in for the trainer's object `_stands_for`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Give every subclass these properties. Python's errors, which a model may see, name a tool
        with its module.
        """
        for name in ("__module__", "__doc__"):
            setattr(cls, name, property(attrgetter(f"_stands_for.{name}")))


class StandIn(Standing):
    """Passes for the function it stands for, except that a call goes through `around(function, *args, **kwargs)`.

    Trainers' subclasses use more of a function than its result: its signature, its attributes, equality.
    """

    __slots__ = ("__weakref__", "_stand_in_around", "_stands_for")

    def __init__(self, function: Any, around: Callable[..., Any]) -> None:
        object.__setattr__(self, "_stands_for", function)
        object.__setattr__(self, "_stand_in_around", around)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
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

    def __str__(self) -> str:
        return str(self._stands_for)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return itself, (self._stands_for,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._stands_for)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._stands_for)


class AsyncStandIn(StandIn):
    """A stand-in for an async function, or for an object with an async `__call__`."""

    __slots__ = ()

    async def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return await self._stand_in_around(self._stands_for, *args, **kwargs)


class StandIns(list[Any]):
    """A trainer's list whose items are replaced by stand-ins on first access, because most are never accessed."""

    def __init__(self, items: Iterable[Any], stand_in: Callable[[int, Any], Any]) -> None:
        super().__init__(items)
        self._stand_in = stand_in
        self._cache: dict[Any, Any] | None = {}

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._cache[index]  # type: ignore[index]
        except (KeyError, TypeError):
            return self._create(index)

    def _create(self, index: Any) -> Any:
        if self._cache is None:
            return super().__getitem__(index)
        if isinstance(index, slice):
            return list(self)[index]
        position = range(len(self))[index]
        if position not in self._cache:
            self._cache[position] = self._stand_in(position, super().__getitem__(position))
        return self._cache[position]

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self._cache is None else map(self.__getitem__, range(len(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(map(itself, super().__iter__())),)

    def _after_creating_all(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Create the stand-ins of all items before an operation moves them."""
        if self._cache is not None:
            stand_ins, self._cache = list(self), None
            super().__setitem__(slice(None), stand_ins)
        return getattr(super(), name)(*args, **kwargs)


def _moving(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._after_creating_all(name, *args, **kwargs)


_MOVING = "append clear copy extend insert pop remove reverse sort"
_OPERATORS = "add delitem iadd imul mul reversed rmul setitem"
for _name in (*_MOVING.split(), *(f"__{name}__" for name in _OPERATORS.split())):
    setattr(StandIns, _name, _moving(_name))


def itself(value: Any) -> Any:
    """Return the object that a stand-in replaces; return anything else unchanged."""
    return object.__getattribute__(value, "_stands_for") if issubclass(type(value), Standing) else value


@contextmanager
def swapped(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of the trainer for one call, keeping the call's own changes to them.

    A list of stand-ins has one per item of the trainer's list, which gets its own items back.
    """
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in values.items():
            current = getattr(target, name, None)
            if isinstance(current, list):
                _put_back(current, before[name] if current is value else current)
            if current is value:
                setattr(target, name, before[name])


def _put_back(current: list[Any], into: list[Any]) -> None:
    """Copy the items of `current` into the trainer's list, without stand-ins."""
    items = list(map(itself, list.__iter__(current)))
    if [*map(id, items)] != [*map(id, list.__iter__(into))]:
        into[:] = items


@contextmanager
def added(values: dict[str, Any], more: Mapping[str, Any]) -> Iterator[None]:
    """Add to one of the trainer's dictionaries for one call, keeping the call's own changes to it."""
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
