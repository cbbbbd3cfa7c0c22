"""Encode any value as JSON text without loss.

Ordinary values are ordinary JSON. A value that JSON cannot represent becomes an object with one key that starts with
`$`: `$float` (NaN, infinities), `$int` (beyond 64 bits), `$str` (lone surrogates), `$bytes`, `$tuple`, `$dict` (keys
that are not text or look like one of these), `$datetime`, `$date`, `$time`, `$timedelta`, `$decimal`, `$image`, and
`$lost` for a value that cannot be stored at all. `decode(encode(x)) == x`, with the same types, except that an object
of a subclass comes back as its built-in base type.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

import orjson
from rollout_hookspecs import Image, Placeholder, Rollout, Tokens, ToolCall

from rollout_plugins.content.limits import REPEATED, STORED_DEPTH, STORED_ITEMS, Nesting, TooManyItemsError

_MIN_INT, _MAX_INT = -(2**63), 2**64
_EXACT = frozenset({str, int, bool, type(None)})
_PLAIN = _EXACT | {float, dict, list}
#: Exceptions that a foreign object may raise when its attributes are read.
INSPECTION_ERRORS = (Exception, SystemExit)


def encode(value: Any, lost: list[Placeholder] | None = None) -> str:
    """Return any value as JSON text, without raising.

    A value that cannot be stored becomes a `Placeholder`, which is also appended to `lost`.
    """
    try:
        if _are_plain([value]):
            text = orjson.dumps(value)
            if b'"$' not in text or not _TAG.search(text):
                return text.decode()
    except INSPECTION_ERRORS:
        pass  # orjson refuses lone surrogates, integers beyond 64 bits, other keys than text, and deep nesting
    structure, losses = _tagged(value)
    if lost is not None:
        lost += losses
    return orjson.dumps(structure).decode()


def encode_all(values: Sequence[Any], lost: list[Placeholder] | None = None) -> list[str]:
    """Encode many values like `encode`, but check all of them at once because most need no tags."""
    try:
        if _are_plain(values):
            texts = list(map(bytes.decode, map(orjson.dumps, values)))  # as bytes, each would take 4 kB
            if '"$' not in "".join(texts):
                return texts
    except INSPECTION_ERRORS:
        pass
    return [encode(value, lost) for value in values]


def to_tagged(value: Any) -> Any:
    """Return the structure that `encode` writes, for files that are formatted for people."""
    return _tagged(value)[0]


def _tagged(value: Any) -> tuple[Any, list[Placeholder]]:
    """Return the structure and what was lost.

    A value with too many items is encoded again with each container only once.
    """
    for is_vast in (False, True):
        tagger = _Tagger(is_vast)
        with suppress(TooManyItemsError):
            return tagger.tag(value, "", 0), tagger.lost
    raise AssertionError


def decode(text: str | bytes) -> Any:
    """Return the value that `encode` encoded."""
    data = text.encode() if isinstance(text, str) else text
    value = orjson.loads(data)
    return from_tagged(value) if b'"$' in data and _TAG.search(data) else value


def is_valid_unicode(text: str) -> bool:
    """Return whether a file can store the text as UTF-8, that is, whether it has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Return the text with a question mark in place of each lone surrogate."""
    return str.encode(text, "utf-8", "replace").decode()


def _are_plain(values: Sequence[Any]) -> bool:
    """Return whether orjson encodes all values exactly or refuses them, as it does odd keys, integers and text."""
    budget = STORED_ITEMS
    while values:
        kinds = set(map(type, values))
        if kinds <= _EXACT:
            return True
        if not kinds <= _PLAIN:
            return False
        if float in kinds and not all(map(math.isfinite, [value for value in values if type(value) is float])):
            return False
        dicts: list[dict[Any, Any]] = [value for value in values if type(value) is dict]
        lists: list[list[Any]] = [value for value in values if type(value) is list]
        budget -= 20 * (len(dicts) + len(lists)) + sum(map(len, dicts)) + sum(map(len, lists))
        if budget < 0:
            return False
        values = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    return True


class _Tagger:
    """Encodes values that need tags. `depth` counts the levels of the JSON output."""

    def __init__(self, is_vast: bool) -> None:
        self.lost: list[Placeholder] = []
        self._budget = STORED_ITEMS
        self._nesting = Nesting(STORED_DEPTH)
        self._seen: dict[int, Any] | None = {} if is_vast else None

    def tag(self, value: Any, where: str, depth: int) -> Any:
        try:
            return self._tag(value, where, depth)
        except INSPECTION_ERRORS as error:
            return self._lose(value, where, f"raised {type(error).__name__}")

    def _tag(self, value: Any, where: str, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            return text if is_valid_unicode(text) else {"$str": text.encode("unicode_escape").decode()}
        if isinstance(value, int):
            number = int.__pos__(value)
            return number if _MIN_INT <= number < _MAX_INT else {"$int": hex(number)}
        if isinstance(value, float):
            real = float.__pos__(value)
            return real if math.isfinite(real) else {"$float": repr(real)}
        if isinstance(value, (dict, list, tuple, Mapping)):
            return self._container(value, where, depth)
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, Image):
            present = {f.name: v for f in fields(Image) if (v := getattr(value, f.name)) is not f.default}
            return {"$image": {name: self.tag(v, f"{where}.{name}", depth + 2) for name, v in present.items()}}
        if isinstance(value, Placeholder):
            fields_as_text = {f.name: _safe(getattr(value, f.name)) for f in fields(Placeholder)}
            return self._note(Placeholder(**{**fields_as_text, "where": fields_as_text["where"] or _safe(where)}))
        if type(value) in _TYPED:
            key, write, _ = _TYPED[type(value)]
            return {key: write(value)}
        scalar = _scalar(value)
        return self._lose(value, where, "no JSON form") if scalar is None else self._tag(scalar, where, depth)

    def _container(self, value: Any, where: str, depth: int) -> Any:
        if why := self._nesting.objection(value, depth) or self._again(value):
            return self._lose(value, where, why)
        self._nesting.enter(value)
        try:
            if isinstance(value, list):
                return self._items(list.__iter__(value), where, depth + 1)
            if isinstance(value, tuple):
                return {"$tuple": self._items(tuple.__iter__(value), where, depth + 2)}
            return self._pairs(dict.items(value) if isinstance(value, dict) else value.items(), where, depth)
        finally:
            self._nesting.leave(value)

    def _again(self, value: Any) -> str:
        if self._seen is None:
            self._budget -= 1 + len(value)
            if self._budget < 0:
                raise TooManyItemsError
            return ""
        if id(value) in self._seen:
            return REPEATED
        self._seen[id(value)] = value
        return ""

    def _items(self, values: Any, where: str, depth: int) -> list[Any]:
        out = []
        for index, value in enumerate(values):
            out.append(self.tag(value, f"{where}[{index}]", depth))  # a comprehension would add stack frames
        return out

    def _pairs(self, items: Any, where: str, depth: int) -> Any:
        items = [(key, value) for key, value in items]  # a mapping whose items are no pairs fails here as a whole
        if all(type(key) is str and is_valid_unicode(key) for key, _ in items) and not (
            len(items) == 1 and items[0][0] in _UNTAG
        ):
            out = {}
            for key, value in items:
                out[key] = self.tag(value, f"{where}.{key}", depth + 1)
            return out
        pairs = []
        for index, (key, value) in enumerate(items):
            name = self.tag(key, f"{where}{{key {index}}}", depth + 3)
            pairs.append([name, self.tag(value, f"{where}{{{index}}}", depth + 3)])
        return {"$dict": pairs}

    def _lose(self, value: Any, where: str, why: str) -> dict[str, Any]:
        return self._note(placeholder_for(value, where, why))

    def _note(self, placeholder: Placeholder) -> dict[str, Any]:
        self.lost.append(placeholder)
        return {"$lost": {f.name: getattr(placeholder, f.name) for f in fields(Placeholder)}}


def placeholder_for(value: Any, where: str, why: str) -> Placeholder:
    """Return the `Placeholder` that replaces a value."""
    return Placeholder(type=_type_name(value), where=_safe(where), why=_safe(why), preview=_preview(value))


def _type_name(value: Any) -> str:
    kind = type(value)
    try:
        return _safe(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    except INSPECTION_ERRORS:  # a metaclass may object too
        return "object"


def _preview(value: Any) -> str:
    """Return a short text about the value. Arrays and containers are summarised (type and size), not traversed."""
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is not None and dtype is not None:
            return _safe(f"{dtype}{list(shape)}")
        if isinstance(value, (list, tuple, Mapping, AbstractSet)):
            return f"{len(value)} items"
        return _safe(repr(value)[:200])
    except INSPECTION_ERRORS:
        return ""


def _scalar(value: Any) -> Any:
    """Return the number in a 0-dimensional array or tensor in this process's memory; None for anything else."""
    if getattr(value, "shape", None) != () or not hasattr(value, "dtype"):
        return None
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        return None
    number = value.item()
    return number if type(number) in {int, float, bool, str} else None


def _safe(value: Any) -> str:
    return replace_surrogates(str(value))


def from_tagged(value: Any) -> Any:
    """Turn `$` objects back into the values that they represent."""
    if isinstance(value, list):
        return [from_tagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in _UNTAG:
            with suppress(Exception):  # another program may have written an object that looks like ours
                return _UNTAG[key](inner)
    return {key: from_tagged(item) for key, item in value.items()}


def _untagged_dict(pairs: list[Any]) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key, value in pairs:
        name = from_tagged(key)
        try:
            hash(name)
        except TypeError:  # the key was a hashable subclass of a type that is not hashable
            name = placeholder_for(name, f"{{key {len(out)}}}", "not a key without its class")
        out[name] = from_tagged(value)
    return out


_TYPED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    datetime: ("$datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("$date", date.isoformat, date.fromisoformat),
    time: ("$time", time.isoformat, time.fromisoformat),
    timedelta: ("$timedelta", lambda t: [t.days, t.seconds, t.microseconds], lambda parts: timedelta(*parts)),
    Decimal: ("$decimal", str, Decimal),
}
_UNTAG: dict[str, Callable[[Any], Any]] = {
    "$str": lambda text: text.encode().decode("unicode_escape"),
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$bytes": base64.b64decode,
    "$tuple": lambda items: tuple(from_tagged(item) for item in items),
    "$dict": _untagged_dict,
    "$image": lambda kept: Image(**from_tagged(kept)),
    "$lost": lambda kept: Placeholder(**kept),
    **{key: read for key, _, read in _TYPED.values()},
}
_TAG = re.compile(b'"(?:%s)":' % b"|".join(re.escape(key.encode()) for key in _UNTAG))


def rollout_json(rollout: Rollout) -> str:
    """Return a rollout as `rollouts show --json` prints it: plain JSON, with tags only where JSON has no type."""
    return encode(_to_dicts(rollout)) + "\n"


def _to_dicts(value: Any) -> Any:
    """Turn records into dicts and their tuples into lists; values from models and datasets stay unmodified."""
    if isinstance(value, (Rollout, ToolCall, Image, Tokens)):
        return {field.name: _to_dicts(getattr(value, field.name)) for field in fields(value)}
    return [_to_dicts(item) for item in value] if isinstance(value, tuple) else value
