"""Wrap methods of one instance with wrappers that pass every call through and can be removed."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeAlias

from rollout_plugins.system.warn_once import Once

logger = logging.getLogger("rollout_plugins")

Around: TypeAlias = "Callable[[Call], Any]"


@dataclass(slots=True)
class Call:
    """One call of a wrapped method. The function around it must run it exactly once, and return its result."""

    method: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parameters: tuple[str, ...] = ()
    """The parameters that the method is expected to have."""
    signatures: dict[tuple[Any, tuple[str, ...]], inspect.Signature] = field(default_factory=dict)
    """A cache of signatures by method and expected parameters, shared by all calls of one wrapper."""

    def run(self) -> Any:
        return self.method(*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name; unused `**kwargs` are an empty dictionary."""
        return self.named(self.parameters)

    def named(self, parameters: tuple[str, ...]) -> dict[str, Any]:
        """Return the arguments by name, or by position in `parameters` if the method does not name them."""
        key = getattr(self.method, "__func__", self.method), parameters
        if key not in self.signatures:
            self.signatures[key] = _signature(self.method, parameters)
        bound = self.signatures[key].bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return bound.arguments


class _Link(NamedTuple):
    """The data of one of our wrappers, stored as its attribute.

    It names its wrapper, because a foreign `functools.wraps` copies the attribute to other functions.
    """

    wrapper: Callable[..., Any]
    owner: Wraps
    target: Any
    name: str
    before: Any


class Wraps:
    """A set of wrappers that are removed together."""

    def __init__(self) -> None:
        self._links: list[_Link] = []
        self.once = Once()
        self.active = True

    def wrap(self, target: Any, name: str, around: Around, parameters: tuple[str, ...] = ()) -> bool:
        """Replace the target's method by `around(call)`; warn and leave it if it lacks these parameters."""
        if missing := describe_lack(target, name, parameters):
            logger.warning("%s %s, so rollouts are recorded without its information", type(target).__name__, missing)
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
        """Return whether only our own callbacks wrapped the method after this one."""
        link = _link_of(vars(target).get(name))
        while link is not None and link.owner is not self:
            link = _link_of(link.before)
        return link is not None

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Log an exception of our own code once instead of raising it into the trainer."""
        try:
            yield
        except Exception as error:
            self.once.warn("could not %s: %r; training continues", what, error, about=what, error=error)

    def detach(self) -> None:
        """Remove the wrappers, newest first."""
        self.active = False
        for link in reversed(self._links):
            _take_off(link)
        self._links.clear()


def _as_method(wrapper: Callable[..., Any], original: Any) -> dict[str, Any]:
    """Return the attributes of a bound method, for code that unpacks a method to bind it again."""
    if not isinstance(original, MethodType):
        return {}

    def function(_: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **kwargs)

    return {"__self__": original.__self__, "__func__": function}


def _take_off(link: _Link) -> None:
    """Restore the previous method. If other code wrapped ours since, ours stays and passes calls through."""
    attributes = vars(link.target)
    if attributes.get(link.name) is link.wrapper:
        before = _before(link.wrapper, lambda wrapped: not wrapped.owner.active)
        if before is None:
            delattr(link.target, link.name)
        else:
            setattr(link.target, link.name, before)
    if not any(map(_link_of, attributes.values())):
        attributes.pop("__getstate__", None)


def _link_of(value: Any) -> _Link | None:
    """Return the link of one of our wrappers; None for anything else."""
    link = vars(value).get("_link") if isinstance(value, FunctionType) else None
    return link if isinstance(link, _Link) and link.wrapper is value else None


def _before(value: Any, skips: Callable[[_Link], bool] = lambda _: True) -> Any:
    """Return the attribute beneath our wrappers; None if that was the class's method."""
    while (link := _link_of(value)) is not None and skips(link):
        value = link.before
    return value


def beneath(target: Any, name: str) -> Any:
    """Return the target's method without our wrappers; None if it has no such method."""
    method = _before(vars(target).get(name))
    return _of_class(target, name) if method is None else method


def _of_class(target: Any, name: str, default: Any = None) -> Any:
    """Return the method from the target's class, where it may have been replaced since it was wrapped."""
    for owner in type(target).__mro__:
        if name in vars(owner):
            attribute = vars(owner)[name]
            return attribute.__get__(target, type(target)) if hasattr(attribute, "__get__") else attribute
    return default


def _state_without_wrappers(target: Any) -> Any:
    """Return the state for copies and pickles of a wrapped object, without the wrappers.

    `copy` and `pickle` prefer an instance's own `__getstate__`. In Python 3.10, `object` has none.
    """
    own: Any = getattr(type(target), "__getstate__", None)
    state = vars(target) if own is None else own(target)
    if not isinstance(state, dict):
        return state
    unwrapped = {name: _before(value) for name, value in state.items() if name != "__getstate__"}
    return {name: value for name, value in unwrapped.items() if value is not None or state[name] is None}


def describe_lack(target: Any, name: str, parameters: tuple[str, ...] = ()) -> str:
    """Describe why the target has no method `name` with these parameters; empty if it has one.

    The method may take more than these, in any order. `(*args, **kwargs)` is a foreign wrapper that takes anything.
    """
    method = getattr(target, name, None)
    if not callable(method):
        return f"has no method {name}"
    if inspect.isdatadescriptor(getattr(type(target), name, None)):
        return f"has {name} as a property, which nothing can be put around"
    try:
        actual = _names(inspect.signature(method))
    except (TypeError, ValueError):
        return f"has a method {name} whose arguments cannot be read"
    if set(parameters) <= set(actual) or _accepts_anything_after(actual, parameters):
        return ""
    return f"has {name}({', '.join(actual)}), expected {name}({', '.join(parameters)})"


def _names(signature: inspect.Signature) -> tuple[str, ...]:
    """Return the names of the parameters, with the stars of `*args` and `**kwargs`."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return tuple(stars.get(parameter.kind, "") + parameter.name for parameter in signature.parameters.values())


def _accepts_anything_after(actual: tuple[str, ...], parameters: tuple[str, ...]) -> bool:
    """Return whether the method takes the first of these parameters and then any arguments."""
    first_star = next((i for i, name in enumerate(actual) if name[0] == "*" != name[1]), None)
    return first_star is not None and actual[:first_star] == parameters[:first_star]


def _signature(method: Callable[..., Any], parameters: tuple[str, ...]) -> inspect.Signature:
    """Return the method's signature, or one with these parameters by position if it does not name them."""
    signature = inspect.signature(method)
    if set(parameters) <= set(_names(signature)):
        return signature
    kind, rest = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_KEYWORD
    positional = [inspect.Parameter(name, kind) for name in parameters if name[0] != "*"]
    kwargs_name = next((name[2:] for name in parameters if name[0] == "*"), "_named")
    variadic = [inspect.Parameter("_more", inspect.Parameter.VAR_POSITIONAL), inspect.Parameter(kwargs_name, rest)]
    return inspect.Signature([*positional, *variadic])
