"""Replace values anywhere inside a field, whatever the field contains, without changing the original."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from rollout_hookspecs import Placeholder

from rollout_plugins.content.exact_json import placeholder_for
from rollout_plugins.content.limits import HASHED_DEPTH, TOO_DEEP, Nesting

ATOMS = frozenset({int, float, bool, type(None)})


class Place(NamedTuple):
    """The place of a value: a chain of keys that starts at its field."""

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

    `change(value, context, place)` returns the replacement of a value; if it returns the value itself, the walk
    continues inside it. `enter(container, key, context)` returns the context of a child. Unchanged parts stay the same
    objects, and an object that occurs in many places is read once per context.
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
        self._nesting = Nesting(HASHED_DEPTH)

    def __call__(self, value: Any, context: Hashable, place: Place, depth: int = 0) -> Any:
        """Return the value with everything inside it replaced; a `Placeholder` if that was not possible."""
        try:
            changed = self._change(value, context, place)
            if changed is not value or not isinstance(value, (dict, list, tuple, Mapping)):
                return changed
            cached = self._done.get((id(value), context))
            if cached is not None:
                return cached[1]
            if reason := self._nesting.objection(value, depth):
                return lost(value, place, reason)
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
        """Return the container with its children replaced. Its one frame per level saves Python's limited stack."""
        unchanged = True
        if isinstance(value, Mapping):
            new_dict: dict[Any, Any] = {}
            for key, item in list(value.items()):
                new_key = key if self._change_key is None else _unused_key(self._change_key(key), new_dict)
                new_dict[new_key] = self(item, self._enter(value, key, context), Place(place, key), depth)
                unchanged = unchanged and new_key is key and new_dict[new_key] is item
            return value if unchanged else new_dict
        new: list[Any] = []
        for i, item in enumerate(value):
            new.append(self(item, self._enter(value, i, context), Place(place, i), depth))
            unchanged = unchanged and new[-1] is item
        if unchanged:
            return value
        return new if isinstance(value, list) else tuple(new)


def lost(value: Any, place: Place, reason: str) -> Placeholder:
    """Return the placeholder for a value that could not be kept."""
    return placeholder_for(value, str(place), reason)


def _unused_key(key: Any, taken: Mapping[Any, Any]) -> Any:
    """Return `key`, or the first of `key (2)`, `key (3)`, … that is not in `taken`."""
    if key not in taken:
        return key
    return next(name for n in range(2, len(taken) + 3) if (name := f"{key} ({n})") not in taken)


def _text(key: Any) -> str:
    if isinstance(key, str):
        return key[:80]
    return type(key).__name__
