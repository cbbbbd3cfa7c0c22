"""Where secrets can be in a rollout: every text of every field, and values that go by their name or path."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any, NamedTuple

from rollout_hookspecs import Image, Placeholder, ToolCall

from rollout_plugins.hashing import is_array, is_pil, is_tensor
from rollout_plugins.plugins.rewrite import ATOMS, Place, Rewriter, lost

ROOTS = ("prompt", "completion", "tool_calls", "columns", "extra", "error", "rendered")
SEARCHED = (*ROOTS, "images", "marks", "rewards", "finish")
_WHOLE_ROOTS = frozenset({"error", "rendered"})
_AGAIN = frozenset({"tool_calls", "rendered", "images", "marks", "rewards"})  # they repeat what other fields hold
_CALL_FIELDS = ("name", "arguments", "result", "error", "status")

Fields = dict[str, Any]
Paths = tuple[tuple[str, ...], ...]
"""What is left of each path at some place; an empty one ends there."""
Text = Callable[[str, Counter[str]], str]
Context = tuple[str | None, Paths]
"""The rule by which the whole value goes, if one does, and the paths that go on below it."""


def path_faults(fields: Any) -> list[str]:
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        return [f"fields={fields!r} is not a list of paths such as 'columns.email' or '**.password'"]
    return [f"fields has {path!r}; {why}" for path in fields if (why := _path_fault(path))]


def _path_fault(path: Any) -> str | None:
    parts = path.split(".") if isinstance(path, str) else []
    if not parts or not all(parts):
        return "a path is names joined by dots, such as 'columns.email'"
    if parts[0] == "**":
        return None if len(parts) == 2 and parts[1] != "*" else "after '**.' stands one name"
    if parts[0] not in ROOTS:
        return f"a path starts at {', '.join(ROOTS)} or '**'"
    return None if len(parts) > 1 or parts[0] in _WHOLE_ROOTS else f"{path} is a whole field; name a value in it"


class Counts(NamedTuple):
    """Secrets replaced, and those in fields that repeat what others hold."""

    first: Counter[str]
    again: Counter[str]


class Walk:
    """Goes through the fields of a rollout, first for whole values, then for texts."""

    def __init__(self, paths: Sequence[str], names: frozenset[str], token: Callable[[str, Any], str]) -> None:
        self._paths: Paths = tuple(tuple(path.split(".")) for path in paths if not path.startswith("**."))
        self._own_names = frozenset(_plain_name(path[3:]) for path in paths if path.startswith("**."))
        self._names = frozenset(_plain_name(name) for name in names)
        self._token = token

    def whole_values(self, fields: Fields, texts: dict[str, None], counts: Counts) -> Fields:
        """The fields without the values that go whole; all texts that are left are added to `texts`."""

        def noted(text: str, _: Counter[str]) -> str:
            texts.setdefault(_exact(text))
            return text

        return self._each(fields, noted, counts, whole=True)

    def texts(self, fields: Fields, clean: Mapping[str, tuple[str, Counter[str]]], counts: Counts) -> Fields:
        """The fields with their texts replaced."""

        def cleaned(text: str, counts: Counter[str]) -> str:
            found = clean.get(_exact(text))
            if found is None:
                return text
            counts.update(found[1])
            return found[0]

        return self._each(fields, cleaned, counts, whole=False)

    def _each(self, fields: Fields, text: Text, counts: Counts, *, whole: bool) -> Fields:
        new: Fields = {}
        for name, value in fields.items():
            visitor = _Visitor(self, text, counts.again if name in _AGAIN else counts.first, whole=whole)
            new[name] = visitor.field(name, value, self.enter(fields, name, (None, self._paths)))
        return new

    def enter(self, container: Any, key: Any, context: Context) -> Context:
        """Whether a child goes whole, and which paths go on in it."""
        rest = tuple(path[1:] for path in context[1] if path[0] in {"*", str(key)})
        if () in rest:
            return "field", ()
        if isinstance(key, str) and isinstance(container, Mapping):
            name = _plain_name(key)
            if name in self._own_names:
                return "field", ()
            if name in self._names:
                return "named", rest
        return None, rest

    def whole(self, value: Any, rule: str) -> str | None:
        """The token for a value that goes whole. The built-in names go by texts alone: `password` may be a schema."""
        if value is None or (rule == "named" and not (isinstance(value, (str, bytes, bytearray)) and value)):
            return None
        return self._token(rule, value)


def _plain_name(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")


def _exact(text: str) -> str:
    """As a plain str, so that a subclass cannot hide by being unequal to itself."""
    return text if type(text) is str else str.__str__(text)


class _Visitor:
    """Rewrites one field."""

    def __init__(self, walk: Walk, text: Text, counts: Counter[str], *, whole: bool) -> None:
        self._walk = walk
        self._whole = whole
        self._text = text
        self._counts = counts
        self._rewrite = Rewriter(self._change, walk.enter, self._key)

    def field(self, name: str, value: Any, context: Context) -> Any:
        if name == "tool_calls":
            calls = [self._call(call, i, self._walk.enter(value, i, context)) for i, call in enumerate(value)]
            return value if all(a is b for a, b in zip(calls, value, strict=True)) else tuple(calls)
        new = self._rewrite(value, context, Place(None, name))
        if isinstance(new, Placeholder) and not isinstance(value, str):
            return {name: new} if isinstance(value, Mapping) else (new,)
        return new

    def _call(self, call: ToolCall, number: int, context: Context) -> ToolCall:
        place = Place(Place(None, "tool_calls"), number)
        old = {name: getattr(call, name) for name in _CALL_FIELDS}
        new = {
            name: self._rewrite(value, self._walk.enter(call, name, context), Place(place, name))
            for name, value in old.items()
        }
        return call if all(new[name] is old[name] for name in old) else replace(call, **new)

    def _key(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._text(key, self._counts)
        return key if type(key) in ATOMS else self._rewrite(key, (None, ()), Place(None, "key"))

    def _change(self, value: Any, context: Context, place: Place) -> Any:
        rule, _ = context
        if self._whole and rule is not None:
            token = self._walk.whole(value, rule)
            if token is not None:
                self._counts[rule] += 1
                return token
        if isinstance(value, str):
            return self._str(value, context, place)
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(value)
        if isinstance(value, (Image, Placeholder)):
            return self._record(value)
        if isinstance(value, (set, frozenset)):
            return self._set(value, place)
        if type(value) in ATOMS or isinstance(value, (int, float, list, tuple, Mapping)):
            return value
        return self._object(value, place)

    def _str(self, value: str, context: Context, place: Place) -> str:
        if place.key == "arguments" and value.lstrip()[:1] in {"{", "["}:
            value = self._json(value, context, place)
        return self._text(value, self._counts)

    def _json(self, value: str, context: Context, place: Place) -> str:
        """Arguments as JSON text: names and paths count inside it too."""
        try:
            parsed = json.loads(value)
            new = self._rewrite(parsed, (None, context[1]), place)
            return value if new is parsed else json.dumps(new, ensure_ascii=False)
        except (ValueError, TypeError, RecursionError):
            return value

    def _bytes(self, value: bytes | bytearray) -> Any:
        """Bytes as the text they are."""
        encoding = "utf-8"
        try:
            text = value.decode(encoding)
        except UnicodeDecodeError:
            encoding = "latin-1"
            text = value.decode(encoding)
        new = self._text(text, self._counts)
        return value if new == text else new.encode(encoding)

    def _record(self, value: Image | Placeholder) -> Any:
        old = {field.name: getattr(value, field.name) for field in dataclass_fields(value)}
        new = {name: self._key(text) for name, text in old.items()}
        return value if new == old else replace(value, **new)

    def _set(self, value: set[Any] | frozenset[Any], place: Place) -> Any:
        items = list(value)
        new = [self._rewrite(item, (None, ()), place) for item in items]
        return value if all(a is b for a, b in zip(new, items, strict=True)) else type(value)(new)

    def _object(self, value: Any, place: Place) -> Any:
        """Anything else is searched as it would be shown; its insides can't be replaced, so then it goes whole."""
        if is_pil(value) or is_tensor(value) or (is_array(value) and value.dtype.kind not in "OSU"):
            return value
        shown = [repr(value.tolist())] if is_array(value) else [repr(value), str(value)]
        new = [self._text(text, self._counts) for text in shown]
        if new == shown:
            return value
        return replace(lost(None, place, "held a secret"), type=type(value).__qualname__, preview=new[0][:200])
