"""Walk the places where secrets can be in a rollout: every text of every field, and values named by key or path."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any, NamedTuple

from rollout_hookspecs import Image, Placeholder, Rollout, Tokens, ToolCall

from rollout_plugins.content.hashing import is_array, is_pil, is_tensor
from rollout_plugins.plugins.redact.key_lines import find_key_lines
from rollout_plugins.plugins.redact.shown import replace_values
from rollout_plugins.plugins.rewrite import ATOMS, Place, Rewriter, lost

ROOTS = ("prompt", "completion", "tool_calls", "columns", "extra", "error", "rendered")
SEARCHED = tuple(field.name for field in dataclass_fields(Rollout) if field.name != "id")
"""All fields, because a plugin may have put an error's text where a number belongs."""
_WHOLE_ROOTS = frozenset({"error", "rendered"})
_AGAIN = frozenset({"tool_calls", "rendered", "images", "marks", "rewards"})  # they repeat the content of other fields
_CALL_FIELDS = tuple(field.name for field in dataclass_fields(ToolCall))
_NUMBERED = frozenset({"rewards", "tokens"})  # their numbers are measured, so none of them is a secret
_FEW_DIGITS = 1000  # a smaller number called password is a count, a flag or a length
_LARGEST = 10**100
_MOST_KEYS = 10_000

Fields = dict[str, Any]
Paths = tuple[tuple[str, ...], ...]
"""The remainders of paths at some place. An empty remainder means that its path ends there."""
Text = Callable[[str, Counter[str]], str]
Context = tuple[str | None, Paths]
"""The rule that replaces the entire value, if any, and the paths that continue below it."""


def path_faults(fields: Any) -> list[str]:
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        return [f"fields={fields!r} is not a list of paths such as 'columns.email' or '**.password'"]
    return [f"fields has {path!r}; {why}" for path in fields if (why := _path_fault(path))]


def _path_fault(path: Any) -> str | None:
    parts = path.split(".") if isinstance(path, str) else []
    if not parts or not all(parts):
        return "a path is names joined by dots, such as 'columns.email'"
    if parts[0] == "**":
        return None if len(parts) == 2 and parts[1] != "*" else "'**.' must be followed by exactly one name"
    if parts[0] not in ROOTS:
        return f"a path starts at {', '.join(ROOTS)} or '**'"
    return None if len(parts) > 1 or parts[0] in _WHOLE_ROOTS else f"{path} is an entire field; name a value in it"


class Counts(NamedTuple):
    """How many secrets were replaced: in all fields that say something first, and in fields that repeat others."""

    first: Counter[str]
    again: Counter[str]


class Walk:
    """Walks the fields of a rollout, first to replace entire values, then to replace secrets in texts."""

    def __init__(
        self, paths: Sequence[str], names: frozenset[str], token: Callable[[str, Any], str], *, private_keys: bool
    ) -> None:
        self._paths: Paths = tuple(tuple(path.split(".")) for path in paths if not path.startswith("**."))
        self._own_names = frozenset(_plain_name(path[3:]) for path in paths if path.startswith("**."))
        self._endings = tuple(map(_plain_name, names))
        self._rules: dict[str, str | None] = {}
        self._token = token
        self._private_keys = private_keys
        self.reads_numbers = False
        """Whether a rule may match a number, such as the user's pattern for account numbers."""

    def replace_values(self, fields: Fields, texts: dict[str, None], counts: Counts) -> Fields:
        """Return the fields with named values replaced entirely, and add all remaining texts to `texts`."""

        def collect(text: str, _: Counter[str]) -> str:
            texts.setdefault(_exact(text))
            return text

        return self._each(fields, collect, counts, whole=True)

    def replace_texts(self, fields: Fields, clean: Mapping[str, tuple[str, Counter[str]]], counts: Counts) -> Fields:
        """Return the fields with each text of `clean` replaced."""

        def replacement(text: str, counts: Counter[str]) -> str:
            result = clean.get(_exact(text))
            if result is None:
                return text
            new_text, rule_counts = result
            counts.update(rule_counts)
            return new_text

        return self._each(fields, replacement, counts, whole=False)

    def _each(self, fields: Fields, text: Text, counts: Counts, *, whole: bool) -> Fields:
        new: Fields = {}
        for name, value in fields.items():
            if type(value) in ATOMS:
                new[name] = value
                continue
            visitor = _Visitor(self, text, counts.again if name in _AGAIN else counts.first, whole=whole)
            new[name] = visitor.field(name, value, self.enter(fields, name, (None, self._paths)))
        return new

    def enter(self, container: Any, key: Any, context: Context) -> Context:
        """Return the context of a child: the rule that replaces it entirely, and the paths that continue in it."""
        rest = tuple(path[1:] for path in context[1] if path[0] in {"*", str(key)})
        if () in rest:
            return "field", ()
        if isinstance(key, str) and isinstance(container, Mapping):
            rule = self._rule_of(key)
            return (rule, ()) if rule == "field" else (rule, rest)
        return None, rest

    def _rule_of(self, key: str) -> str | None:
        """Return the rule that replaces a value because of its key. The few keys recur, so results are cached."""
        exact = _exact(key)
        if exact not in self._rules:
            if len(self._rules) > _MOST_KEYS:
                self._rules.clear()
            name = _plain_name(exact)
            named = "named" if name.endswith(self._endings) else None
            self._rules[exact] = "field" if name in self._own_names else named
        return self._rules[exact]

    def token_for(self, value: Any, rule: str) -> str | None:
        """Return the token that replaces the entire value, or None to leave it.

        The built-in names apply only to texts and long numbers: `password` may be a schema, a flag or a length.
        """
        if value is None or (rule == "named" and not _may_be_secret(value)):
            return None
        return self._token(rule, value)

    def in_text(self, text: str, counts: Counter[str]) -> str:
        """Return `text`, which may show a dict, such as a tool's JSON result, without the values of the user's
        `**.names`.
        """
        if not self._own_names:
            return text
        letters = _plain_name(text)
        if not any(name in letters for name in self._own_names):
            return text

        def is_own(key: str) -> bool:
            return _plain_name(key) in self._own_names

        new, count = replace_values(text, is_own, lambda value: self._token("field", value))
        counts["field"] += count
        return new if count else text

    def without_key_lines(self, values: Sequence[Any], counts: Counter[str]) -> Sequence[Any]:
        """Return a list of lines with the lines of private keys replaced, or the same list if there are none."""
        lines = find_key_lines(values) if self._private_keys else {}
        if not lines:
            return values
        counts["private_key"] += len(set(lines.values()))
        items = list(values)
        for index, key in lines.items():
            items[index] = self._token("private_key", "\n".join(values[line] for line in key))
        return items if isinstance(values, list) else tuple(items)


def _may_be_secret(value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray)):
        return bool(value)
    return type(value) in {int, float} and abs(value) >= _FEW_DIGITS


def _number_text(value: Any) -> str | None:
    """Return a whole number as text; None for flags, fractions and values that are not numbers."""
    if type(value) is int:
        return str(value) if abs(value) < _LARGEST else None
    return str(int(value)) if type(value) is float and value.is_integer() and abs(value) < _LARGEST else None


def _plain_name(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "").replace(" ", "")


def _are_numbers(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return set(map(type, values)) <= ATOMS
    return values is None or isinstance(values, array) or is_tensor(values) or is_array(values)


def _exact(text: str) -> str:
    """Return `text` as a plain str, because a subclass could be unequal to itself and so escape the lookup."""
    return text if type(text) is str else str.__str__(text)


class _Visitor:
    """Rewrites one field."""

    def __init__(self, walk: Walk, text: Text, counts: Counter[str], *, whole: bool) -> None:
        self._walk = walk
        self._whole = whole
        self._text = text
        self._counts = counts
        self._rewrite = Rewriter(self._change, walk.enter, self._key)
        self._reads_numbers = walk.reads_numbers

    def field(self, name: str, value: Any, context: Context) -> Any:
        self._reads_numbers = self._walk.reads_numbers and name not in _NUMBERED
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
            name: value
            if type(value) in ATOMS
            else self._rewrite(value, self._walk.enter(call, name, context), Place(place, name))
            for name, value in old.items()
        }
        return call if all(new[name] is old[name] for name in old) else replace(call, **new)

    def _key(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._text(key, self._counts)
        return self._number(key) if type(key) in ATOMS else self._rewrite(key, (None, ()), Place(None, "key"))

    def _number(self, value: Any) -> Any:
        """Return the number, or the text that replaces it if a rule matches."""
        text = _number_text(value) if self._reads_numbers else None
        if text is None:
            return value
        new = self._text(text, self._counts)
        return value if new == text else new

    def _change(self, value: Any, context: Context, place: Place) -> Any:
        rule, _ = context
        if self._whole and rule is not None and (token := self._walk.token_for(value, rule)) is not None:
            self._counts[rule] += 1
            return token
        if isinstance(value, str):
            return self._str(value, context, place)
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(value)
        if isinstance(value, (Image, Placeholder)):
            return self._record(value)
        if type(value) in ATOMS:
            return self._number(value)
        if isinstance(value, (list, tuple)):
            return self._list(value, context, place)
        if isinstance(value, (set, frozenset)):
            return self._set(value, place)
        if isinstance(value, Tokens):
            return self._tokens(value, place)
        if isinstance(value, (int, float, Mapping)):
            return value
        return self._object(value, place)

    def _list(self, value: Sequence[Any], context: Context, place: Place) -> Any:
        if not self._whole:
            return value
        new = self._walk.without_key_lines(value, self._counts)
        return value if new is value else self._rewrite(new, context, place)

    def _tokens(self, value: Tokens, place: Place) -> Tokens:
        """Return the tokens. Lists of numbers are skipped after one look at their types."""
        old = {field.name: getattr(value, field.name) for field in dataclass_fields(value)}
        new = {
            name: values if _are_numbers(values) else self._rewrite(values, (None, ()), place)
            for name, values in old.items()
        }
        return value if all(new[name] is old[name] for name in old) else replace(value, **new)

    def _str(self, value: str, context: Context, place: Place) -> str:
        if (place.key == "arguments" or context[1]) and value.lstrip()[:1] in {"{", "["}:
            value = self._json(value, context, place)
        if self._whole:
            value = self._walk.in_text(value, self._counts)
        return self._text(value, self._counts)

    def _json(self, value: str, context: Context, place: Place) -> str:
        """Return JSON text with the values replaced that its keys and paths name."""
        try:
            parsed = json.loads(value)
            new = self._rewrite(parsed, (None, context[1]), place)
            return value if new is parsed else json.dumps(new, ensure_ascii=False)
        except (ValueError, TypeError, RecursionError):
            return value

    def _bytes(self, value: bytes | bytearray) -> Any:
        """Search bytes as the text that they encode."""
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
        """Search any other object as it is printed. Its contents can't be changed, so an object with a secret is
        dropped.
        """
        if is_pil(value) or is_tensor(value) or (is_array(value) and value.dtype.kind not in "OSU"):
            return value
        printed = [repr(value.tolist())] if is_array(value) else [repr(value), str(value)]
        new = [self._text(text, self._counts) for text in printed]
        if new == printed:
            return value
        return replace(lost(None, place, "contained a secret"), type=type(value).__qualname__, preview=new[0][:200])
