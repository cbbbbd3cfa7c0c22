"""Wrap methods on one instance, pass everything through, and take the wrappers off again."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

logger = logging.getLogger("rollout_plugins")


class _Link(NamedTuple):
    """Stands on each wrapper of ours. A foreign functools.wraps copies it, so it names whose it is."""

    wrapper: Callable[..., Any]
    owner: Wraps
    before: Callable[..., Any] | None


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

    def _restore(self, name: str, wrapper: Callable[..., Any] | None) -> None:
        """Back to what was there before, past wrappers of ours that were detached in the meantime."""
        while (link := getattr(wrapper, "_link", None)) and link.wrapper is wrapper and not link.owner.active:
            wrapper = link.before
        if wrapper is None:
            delattr(self._target, name)
        else:
            setattr(self._target, name, wrapper)


class Swap:
    """Set attributes of the trainer for the length of one call."""

    def __init__(self, target: Any, **values: Any) -> None:
        self._target, self._values = target, values

    def __enter__(self) -> None:
        self._before = {name: getattr(self._target, name) for name in self._values}
        for name, value in self._values.items():
            setattr(self._target, name, value)

    def __exit__(self, *exc: object) -> None:
        for name, value in self._before.items():
            setattr(self._target, name, value)


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
