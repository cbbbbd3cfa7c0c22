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
        """Every class has these of its own. Python's errors, which a model is shown, name a tool with its module."""
        for name in ("__module__", "__doc__"):
            setattr(cls, name, property(attrgetter(f"_stands_for.{name}")))


class StandIn(Standing):
    """Passes for the function it stands for, except that a call goes through `around(function, *args, **kwargs)`.

    Trainers' subclasses look at more of a function than its result: its signature, its attributes, what it equals.
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
    """A trainer's list, whose items are stood in for once they are asked for: most never are."""

    def __init__(self, items: Iterable[Any], stand_in: Callable[[int, Any], Any]) -> None:
        super().__init__(items)
        self._stand_in = stand_in
        self._made: dict[Any, Any] | None = {}

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._made[index]  # type: ignore[index]
        except (KeyError, TypeError):
            return self._found(index)

    def _found(self, index: Any) -> Any:
        if self._made is None:
            return super().__getitem__(index)
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        if place not in self._made:
            self._made[place] = self._stand_in(place, super().__getitem__(place))
        return self._made[place]

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self._made is None else map(self.__getitem__, range(len(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(map(itself, super().__iter__())),)

    def _with_all_made(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Before something moves the items, each has what stands in for it."""
        if self._made is not None:
            made, self._made = list(self), None
            super().__setitem__(slice(None), made)
        return getattr(super(), name)(*args, **kwargs)


def _moving(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._with_all_made(name, *args, **kwargs)


_MOVING = "append clear copy extend insert pop remove reverse sort"
_OPERATORS = "add delitem iadd imul mul reversed rmul setitem"
for _name in (*_MOVING.split(), *(f"__{name}__" for name in _OPERATORS.split())):
    setattr(StandIns, _name, _moving(_name))


def itself(value: Any) -> Any:
    """Return the object that a stand-in replaces; return anything else unchanged."""
    return object.__getattribute__(value, "_stands_for") if issubclass(type(value), Standing) else value


@contextmanager
def swapped(target: Any, **values: Any) -> Iterator[None]:
    """Have other values in attributes of the trainer for one call. What the call changes there stays changed.

    A list of stand-ins has one for each item of the trainer's list, which gets its own items back.
    """
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in values.items():
            now = getattr(target, name, None)
            if isinstance(now, list):
                _put_back(now, before[name] if now is value else now)
            if now is value:
                setattr(target, name, before[name])


def _put_back(now: list[Any], into: list[Any]) -> None:
    """Copy the items of `now` into the trainer's list, without stand-ins."""
    items = list(map(itself, list.__iter__(now)))
    if [*map(id, items)] != [*map(id, list.__iter__(into))]:
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
