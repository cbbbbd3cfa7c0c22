"""Wrap methods on one instance, pass everything through, and take the wrappers off again."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeAlias

from rollout_plugins.content.once import Once

logger = logging.getLogger("rollout_plugins")

Around: TypeAlias = "Callable[[Call], Any]"


@dataclass(slots=True)
class Call:
    """One call of a wrapped method. What is around it must run it exactly once, and return its result."""

    method: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parameters: tuple[str, ...] = ()
    """Those the method was expected to have."""
    signatures: dict[tuple[Any, tuple[str, ...]], inspect.Signature] = field(default_factory=dict)
    """By method and the parameters it is asked for; what one call found out, the next ones know."""

    def run(self) -> Any:
        return self.method(*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """By name; `**kwargs` that got none are an empty dictionary."""
        return self.named(self.parameters)

    def named(self, parameters: tuple[str, ...]) -> dict[str, Any]:
        """The arguments by name; by their position among these parameters if the method doesn't name them."""
        known = getattr(self.method, "__func__", self.method), parameters
        if known not in self.signatures:
            self.signatures[known] = _signature(self.method, parameters)
        bound = self.signatures[known].bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return bound.arguments


class _Link(NamedTuple):
    """Stands on each wrapper of ours. A foreign functools.wraps copies it, so it names its wrapper."""

    wrapper: Callable[..., Any]
    owner: Wraps
    target: Any
    name: str
    before: Any


class Wraps:
    """Wrappers that come off together."""

    def __init__(self) -> None:
        self._links: list[_Link] = []
        self.once = Once()
        self.active = True

    def wrap(self, target: Any, name: str, around: Around, parameters: tuple[str, ...] = ()) -> bool:
        """Replace the target's method by `around(call)`; if it does not take these arguments, say so and leave it."""
        if missing := lacks(target, name, parameters):
            logger.warning("%s %s; rollouts are recorded without what it would tell", type(target).__name__, missing)
            return False
        original, before, signatures = getattr(target, name), vars(target).get(name), {}  # type: ignore[var-annotated]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            method = original if before is not None else _of_class(target, name, original)
            if not self.active:
                return method(*args, **kwargs)
            return around(Call(method, args, kwargs, parameters, signatures))

        link = _Link(wrapper, self, target, name, before)
        vars(wrapper).update(_link=link, **_as_method(wrapper, original))
        setattr(target, name, wrapper)
        self._links.append(link)
        vars(target)["__getstate__"] = MethodType(_state_without_wrappers, target)
        return True

    def is_outermost(self, target: Any, name: str) -> bool:
        """Whether nobody but callbacks of ours wrapped the method since."""
        link = _link_of(vars(target).get(name))
        while link is not None and link.owner is not self:
            link = _link_of(link.before)
        return link is not None

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Our own mistakes end here: logged once, never raised into the trainer."""
        try:
            yield
        except Exception as error:
            self.once.warn("could not %s: %r; training goes on", what, error, about=what, error=error)

    def detach(self) -> None:
        """Take the wrappers off, newest first."""
        self.active = False
        for link in reversed(self._links):
            _take_off(link)
        self._links.clear()


def _as_method(wrapper: Callable[..., Any], original: Any) -> dict[str, Any]:
    """What a bound method has besides, for those who take it apart to bind it anew."""
    if not isinstance(original, MethodType):
        return {}

    def function(_: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **kwargs)

    return {"__self__": original.__self__, "__func__": function}


def _take_off(link: _Link) -> None:
    """Put back what was there before. If somebody else wrapped it since, ours stays and passes calls through."""
    attributes = vars(link.target)
    if attributes.get(link.name) is link.wrapper:
        before = _before(link.wrapper, lambda one: not one.owner.active)
        if before is None:
            delattr(link.target, link.name)
        else:
            setattr(link.target, link.name, before)
    if not any(map(_link_of, attributes.values())):
        attributes.pop("__getstate__", None)


def _link_of(value: Any) -> _Link | None:
    """The link of a wrapper of ours; None for anything else."""
    link = vars(value).get("_link") if isinstance(value, FunctionType) else None
    return link if isinstance(link, _Link) and link.wrapper is value else None


def _before(value: Any, skips: Callable[[_Link], bool] = lambda _: True) -> Any:
    """What stood in the place of a wrapper before ours; None if that was the class's method."""
    while (link := _link_of(value)) is not None and skips(link):
        value = link.before
    return value


def beneath(target: Any, name: str) -> Any:
    """The target's method without wrappers of ours; None if it has none."""
    found = _before(vars(target).get(name))
    return _of_class(target, name) if found is None else found


def _of_class(target: Any, name: str, otherwise: Any = None) -> Any:
    """The method as the target's class has it now: somebody may have replaced it there since it was wrapped."""
    for owner in type(target).__mro__:
        if name in vars(owner):
            found = vars(owner)[name]
            return found.__get__(target, type(target)) if hasattr(found, "__get__") else found
    return otherwise


def _state_without_wrappers(target: Any) -> Any:
    """What copies and pickles of a watched object are made of: they are not watched, and call methods of their own.

    An instance's own `__getstate__` is what `copy` and `pickle` ask first. Python 3.10 has none in `object`.
    """
    own: Any = getattr(type(target), "__getstate__", None)
    found = vars(target) if own is None else own(target)
    if not isinstance(found, dict):
        return found
    state = {name: _before(value) for name, value in found.items() if name != "__getstate__"}
    return {name: value for name, value in state.items() if value is not None or found[name] is None}


def lacks(target: Any, name: str, parameters: tuple[str, ...] = ()) -> str:
    """What the target lacks of a method that takes these arguments, in words; empty if it has it.

    The method may take more than these, in any order. `(*args, **kwargs)` is a foreign wrapper that takes anything.
    """
    method = getattr(target, name, None)
    if not callable(method):
        return f"has no method {name}"
    if inspect.isdatadescriptor(getattr(type(target), name, None)):
        return f"has {name} as a property, which nothing can be put around"
    try:
        found = _names(inspect.signature(method))
    except (TypeError, ValueError):
        return f"has a method {name} whose arguments cannot be read"
    if set(parameters) <= set(found) or _takes_any_more(found, parameters):
        return ""
    return f"has {name}({', '.join(found)}), expected {name}({', '.join(parameters)})"


def _names(signature: inspect.Signature) -> tuple[str, ...]:
    """Names of the parameters; those that take any number of arguments with their stars."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return tuple(stars.get(parameter.kind, "") + parameter.name for parameter in signature.parameters.values())


def _takes_any_more(found: tuple[str, ...], parameters: tuple[str, ...]) -> bool:
    """Whether what is found takes any arguments after the first ones of these."""
    more = next((i for i, name in enumerate(found) if name[0] == "*" != name[1]), None)
    return more is not None and found[:more] == parameters[:more]


def _signature(method: Callable[..., Any], parameters: tuple[str, ...]) -> inspect.Signature:
    """The method's signature; where it does not name these parameters, one that has them by position."""
    found = inspect.signature(method)
    if set(parameters) <= set(_names(found)):
        return found
    plain, rest = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_KEYWORD
    known = [inspect.Parameter(name, plain) for name in parameters if name[0] != "*"]
    named = next((name[2:] for name in parameters if name[0] == "*"), "_named")
    more = [inspect.Parameter("_more", inspect.Parameter.VAR_POSITIONAL), inspect.Parameter(named, rest)]
    return inspect.Signature([*known, *more])
