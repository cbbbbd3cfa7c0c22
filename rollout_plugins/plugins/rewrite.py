"""Replace values anywhere inside a field without touching the original, whatever the field holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from rollout_hookspecs import Placeholder

from rollout_plugins.content.exact_json import placeholder_for
from rollout_plugins.content.limits import READ_DEPTH, TOO_DEEP, Nesting

ATOMS = frozenset({int, float, bool, type(None)})


class Place(NamedTuple):
    """Where a value is: a chain of keys up to its field."""

    parent: Place | None
    key: Any

    def __str__(self) -> str:
        keys: list[str] = []
        place: Place | None = self
        while place is not None:
            keys.append(f"[{place.key}]" if isinstance(place.key, int) else f".{_text(place.key)}")
            place = place.parent
        return "".join(reversed(keys)).removeprefix(".")


class Rewriter:
    """Walks dicts, lists and tuples.

    `change(value, context, place)` gives the value that should stand there; giving the value itself means "go into
    it". `enter(container, key, context)` says in which context a child is seen. What did not change is the same
    object as before, and what is held in many places is read once per context.
    """

    def __init__(
        self,
        change: Callable[[Any, Any, Place], Any],
        enter: Callable[[Any, Any, Any], Hashable],
        change_key: Callable[[Any], Any] | None = None,
    ) -> None:
        self._change = change
        self._enter = enter
        self._change_key = change_key
        self._done: dict[tuple[int, Hashable], tuple[Any, Any]] = {}
        self._nesting = Nesting(READ_DEPTH)

    def __call__(self, value: Any, context: Hashable, place: Place, depth: int = 0) -> Any:
        """The value with everything inside it replaced; a `Placeholder` where that was not possible."""
        try:
            changed = self._change(value, context, place)
            if changed is not value or not isinstance(value, (dict, list, tuple, Mapping)):
                return changed
            known = self._done.get((id(value), context))
            if known is not None:
                return known[1]
            if why := self._nesting.objection(value, depth):
                return lost(value, place, why)
            self._nesting.enter(value)
            try:
                new = self._container(value, context, place, depth + 1)
            finally:
                self._nesting.leave(value)
        except RecursionError:
            return lost(value, place, TOO_DEEP)
        except Exception as error:
            return lost(value, place, f"raised {type(error).__name__}")
        self._done[id(value), context] = (value, new)
        return new

    def _container(self, value: Any, context: Hashable, place: Place, depth: int) -> Any:
        """One frame for each level besides `__call__`: Python allows only so many."""
        same = True
        if isinstance(value, Mapping):
            named: dict[Any, Any] = {}
            for key, item in list(value.items()):
                name = key if self._change_key is None else _free(self._change_key(key), named)
                named[name] = self(item, self._enter(value, key, context), Place(place, key), depth)
                same = same and name is key and named[name] is item
            return value if same else named
        new: list[Any] = []
        for i, item in enumerate(value):
            new.append(self(item, self._enter(value, i, context), Place(place, i), depth))
            same = same and new[-1] is item
        if same:
            return value
        return new if isinstance(value, list) else tuple(new)


def lost(value: Any, place: Place, why: str) -> Placeholder:
    """What stands in place of a value that could not be kept."""
    return placeholder_for(value, str(place), why)


def _free(key: Any, taken: Mapping[Any, Any]) -> Any:
    """The key, or the first of `key (2)`, `key (3)`, … that is not taken."""
    if key not in taken:
        return key
    return next(name for n in range(2, len(taken) + 3) if (name := f"{key} ({n})") not in taken)


def _text(key: Any) -> str:
    if isinstance(key, str):
        return key[:80]
    return type(key).__name__
