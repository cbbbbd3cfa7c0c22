"""Wrap methods on one instance, pass everything through, and take the wrappers off again."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
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
        original = getattr(self._target, name, None)
        if not callable(original):
            self._unexpected(f"has no method {name}")
            return False
        found = tuple(inspect.signature(original).parameters)
        if parameters is not None and found != parameters:
            self._unexpected(f"has {name}({', '.join(found)}), expected {name}({', '.join(parameters)})")
            return False

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

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


def arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; `**kwargs` that got none are an empty dictionary."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments
