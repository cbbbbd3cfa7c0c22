"""Wrap methods on one instance, pass everything through, and take the wrappers off again."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, NamedTuple

logger = logging.getLogger("rollout_plugins")


class _Link(NamedTuple):
    """Stands on each wrapper of ours. A foreign functools.wraps copies it, so it names whose it is."""

    wrapper: Callable[..., Any]
    owner: Wraps
    before: Any


class Wraps:
    """The wrappers one host put on one trainer."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._names: list[tuple[str, Callable[..., Any]]] = []
        self._told: set[str] = set()
        self.active = True

    def wrap(self, name: str, around: Callable[..., Any], parameters: tuple[str, ...] | None = None) -> bool:
        """Replace the method by `around(original, *args, **kwargs)`; say so, and do nothing, if it is not as expected.

        `around` must call `original` exactly once and return its result.
        """
        if missing := lacks(self._target, name, parameters):
            self._unexpected(missing)
            return False
        original = getattr(self._target, name)
        named = original if parameters is None else by_name(original, parameters)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            return around(named, *args, **kwargs)

        vars(wrapper)["_link"] = _Link(wrapper, self, vars(self._target).get(name))
        setattr(self._target, name, wrapper)
        self._names.append((name, wrapper))
        vars(self._target)["__getstate__"] = MethodType(_state_without_wrappers, self._target)
        return True

    def _unexpected(self, what: str) -> None:
        logger.warning("%s %s; rollouts are recorded without what it would tell", type(self._target).__name__, what)

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Our own mistakes end here: told once, never raised into the trainer."""
        try:
            yield
        except Exception as error:
            if what not in self._told:
                self._told.add(what)
                logger.warning("could not %s: %r; training goes on", what, error, exc_info=error)

    def detach(self) -> None:
        """Take the wrappers off, newest first."""
        self.active = False
        for name, wrapper in reversed(self._names):
            if vars(self._target).get(name) is wrapper:
                self._restore(name, wrapper)
            # else somebody wrapped it after us: ours stays in the chain and passes through
        self._names.clear()
        if not any(map(_link_of, vars(self._target).values())):
            vars(self._target).pop("__getstate__", None)

    def _restore(self, name: str, wrapper: Callable[..., Any] | None) -> None:
        """Back to what was there before, past wrappers of ours that were detached in the meantime."""
        while (link := _link_of(wrapper)) and not link.owner.active:
            wrapper = link.before
        if wrapper is None:
            delattr(self._target, name)
        else:
            setattr(self._target, name, wrapper)


def _link_of(value: Any) -> _Link | None:
    """The link of a wrapper of ours; None for anything else."""
    link = vars(value).get("_link") if isinstance(value, FunctionType) else None
    return link if isinstance(link, _Link) and link.wrapper is value else None


def _state_without_wrappers(target: Any) -> Any:
    """What copies and pickles of a watched object are made of: they are not watched, and call methods of their own.

    An instance's own `__getstate__` is what `copy` and `pickle` ask first. Python 3.10 has none in `object`.
    """
    own: Any = getattr(type(target), "__getstate__", None)
    found = vars(target) if own is None else own(target)
    if not isinstance(found, dict):
        return found
    state = {name: value for name, value in found.items() if name != "__getstate__"}
    for name, value in list(state.items()):
        if _link_of(value) is not None:
            state[name] = before = _before(value)
            if before is None:
                del state[name]
    return state


def _before(value: Any) -> Any:
    """What stood in the place of a wrapper before any of ours."""
    while (link := _link_of(value)) is not None:
        value = link.before
    return value


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


class Swap:
    """Have stand-ins in attributes of the trainer for the length of one call. What it changes there stays changed."""

    def __init__(self, target: Any, **values: Any) -> None:
        self._target, self._values = target, values
        self._before: dict[str, Any] = {}
        self._items: dict[int, Any] = {}

    def __enter__(self) -> None:
        for name, value in self._values.items():
            self._before[name] = before = getattr(self._target, name)
            if isinstance(value, list):
                self._items |= {id(ours): item for ours, item in zip(tuple(value), before, strict=True)}
            setattr(self._target, name, value)

    def __exit__(self, *exc: object) -> None:
        for name, value in self._values.items():
            now, before = getattr(self._target, name, None), self._before[name]
            if isinstance(now, list):
                self._put_back(now, before if now is value else now)
            if now is value:
                setattr(self._target, name, before)

    def _put_back(self, now: list[Any], into: list[Any]) -> None:
        """The items that `now` has, without stand-ins."""
        items = [self._items.get(id(item), item) for item in now]
        if [*map(id, items)] != [*map(id, into)]:
            into[:] = items


@contextmanager
def added(values: dict[str, Any], more: Mapping[str, Any]) -> Iterator[None]:
    """Add to somebody's dictionary for the length of one call. What the call does to the rest stays done."""
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


_PLAIN, _ANY_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_KEYWORD


def lacks(target: Any, name: str, parameters: tuple[str, ...] | None = None) -> str:
    """What the target lacks of a method that takes these arguments, in words; nothing if it has it.

    The method may take more than these, in any order. `(*args, **kwargs)` is somebody's wrapper, which takes all.
    """
    method = getattr(target, name, None)
    if not callable(method):
        return f"has no method {name}"
    try:
        found = _parameters(method)
    except (TypeError, ValueError):
        return f"has a method {name} whose arguments cannot be read"
    if parameters is None or set(parameters) <= set(found) or _is_bare(found, parameters):
        return ""
    return f"has {name}({', '.join(found)}), expected {name}({', '.join(parameters)})"


def _parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a method's parameters; those that take any number of arguments with their stars."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(method).parameters.values()
    return tuple(stars.get(parameter.kind, "") + parameter.name for parameter in found)


def _is_bare(found: tuple[str, ...], parameters: tuple[str, ...]) -> bool:
    """Whether what is found takes any arguments after the first ones of these."""
    more = next((i for i, name in enumerate(found) if name[0] == "*" != name[1]), None)
    return more is not None and found[:more] == parameters[:more]


def by_name(original: Callable[..., Any], parameters: tuple[str, ...]) -> Callable[..., Any]:
    """The same method; where it does not tell these names, with arguments that have them by position."""
    if set(parameters) <= set(_parameters(original)):
        return original

    def named(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    known = [inspect.Parameter(name, _PLAIN) for name in parameters if name[0] != "*"]
    rest = next((name[2:] for name in parameters if name[0] == "*"), "_named")
    more = [inspect.Parameter("_more", inspect.Parameter.VAR_POSITIONAL)]
    vars(named)["__signature__"] = inspect.Signature([*known, *more, inspect.Parameter(rest, _ANY_NAMED)])
    return named


def arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; `**kwargs` that got none are an empty dictionary."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments
