"""JSON text that loses nothing.

Ordinary values are ordinary JSON. What JSON cannot say is an object with one key that starts with `$`:
`$float` (NaN, infinities), `$int` (beyond 64 bits), `$str` (lone surrogates), `$bytes`, `$tuple`, `$dict` (keys that
are not text, or that could be taken for one of these), `$datetime`, `$date`, `$time`, `$timedelta`, `$decimal`,
`$image` and, for what could not be kept at all, `$lost`. `decode(encode(x)) == x` with types; a subclass comes back as
the type it extends.
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

from rollout_plugins.content.limits import AGAIN, KEPT_DEPTH, STORED_ITEMS, EndlessError, Nesting

_MIN_INT, _MAX_INT = -(2**63), 2**64
_EXACT = frozenset({str, int, bool, type(None)})
_PLAIN = _EXACT | {float, dict, list}
#: What an object may raise for being looked at.
TROUBLE = (Exception, SystemExit)


def encode(value: Any, lost: list[Placeholder] | None = None) -> str:
    """Any value as JSON text. What can't be kept becomes a `Placeholder`, also appended to `lost`. Never raises."""
    try:
        if _are_plain([value]):
            text = orjson.dumps(value)
            if b'"$' not in text or not _TAG.search(text):
                return text.decode()
    except TROUBLE:
        pass  # a lone surrogate, an integer beyond 64 bits, a key that is not text, or too deep: the careful way
    structure, losses = _tagged(value)
    if lost is not None:
        lost += losses
    return orjson.dumps(structure).decode()


def encode_all(values: Sequence[Any], lost: list[Placeholder] | None = None) -> list[str]:
    """The same for each of many values; where they are ordinary, with one look at all of them."""
    try:
        if _are_plain(values):
            texts = list(map(bytes.decode, map(orjson.dumps, values)))  # one by one: each takes 4 kB until then
            if '"$' not in "".join(texts):
                return texts
    except TROUBLE:
        pass
    return [encode(value, lost) for value in values]


def tagged(value: Any) -> Any:
    """The JSON structure that `encode` would write, for files that are laid out for people."""
    return _tagged(value)[0]


def _tagged(value: Any) -> tuple[Any, list[Placeholder]]:
    """The structure, and what was lost. A value that seems endless is gone through again, each container only once."""
    for is_vast in (False, True):
        tagger = _Tagger(is_vast)
        with suppress(EndlessError):
            return tagger.tag(value, "", 0), tagger.lost
    raise AssertionError


def decode(text: str | bytes) -> Any:
    """The value that `encode` was given."""
    data = text.encode() if isinstance(text, str) else text
    value = orjson.loads(data)
    return untagged(value) if b'"$' in data and _TAG.search(data) else value


def is_clean(text: str) -> bool:
    """Whether the text is valid Unicode, as files need it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cleaned(text: str) -> str:
    """The text, with a question mark for each half character."""
    return str.encode(text, "utf-8", "replace").decode()


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether orjson writes these exactly, or objects to them itself (it does to odd keys, integers and text)."""
    left = STORED_ITEMS
    while values:
        kinds = set(map(type, values))
        if kinds <= _EXACT:
            return True
        if not kinds <= _PLAIN:
            return False
        if float in kinds and not all(map(math.isfinite, [one for one in values if type(one) is float])):
            return False
        dicts: list[dict[Any, Any]] = [one for one in values if type(one) is dict]
        lists: list[list[Any]] = [one for one in values if type(one) is list]
        left -= 20 * (len(dicts) + len(lists)) + sum(map(len, dicts)) + sum(map(len, lists))
        if left < 0:
            return False
        values = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    return True


class _Tagger:
    """The slow, careful way. `depth` counts levels of the JSON that is written."""

    def __init__(self, is_vast: bool) -> None:
        self.lost: list[Placeholder] = []
        self._left = STORED_ITEMS
        self._nesting = Nesting(KEPT_DEPTH)
        self._seen: dict[int, Any] | None = {} if is_vast else None

    def tag(self, value: Any, where: str, depth: int) -> Any:
        try:
            return self._tag(value, where, depth)
        except TROUBLE as error:
            return self._lose(value, where, f"raised {type(error).__name__}")

    def _tag(self, value: Any, where: str, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            return text if is_clean(text) else {"$str": text.encode("unicode_escape").decode()}
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
            kept = {f.name: v for f in fields(Image) if (v := getattr(value, f.name)) is not f.default}
            return {"$image": {name: self.tag(v, f"{where}.{name}", depth + 2) for name, v in kept.items()}}
        if isinstance(value, Placeholder):
            known = {f.name: _safe(getattr(value, f.name)) for f in fields(Placeholder)}
            return self._note(Placeholder(**{**known, "where": known["where"] or _safe(where)}))
        if type(value) in _SPOKEN:
            key, write, _ = _SPOKEN[type(value)]
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
            self._left -= 1 + len(value)
            if self._left < 0:
                raise EndlessError
            return ""
        if id(value) in self._seen:
            return AGAIN
        self._seen[id(value)] = value
        return ""

    def _items(self, values: Any, where: str, depth: int) -> list[Any]:
        out = []
        for index, value in enumerate(values):
            out.append(self.tag(value, f"{where}[{index}]", depth))  # a comprehension would be one frame more
        return out

    def _pairs(self, items: Any, where: str, depth: int) -> Any:
        items = [(key, value) for key, value in items]  # what gives no pairs fails here, as a whole
        if all(type(key) is str and is_clean(key) for key, _ in items) and not (
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
    """What stands in place of a value that can't be kept."""
    return Placeholder(type=_type_name(value), where=_safe(where), why=_safe(why), preview=_preview(value))


def _type_name(value: Any) -> str:
    kind = type(value)
    try:
        return _safe(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    except TROUBLE:  # a metaclass may object too
        return "object"


def _preview(value: Any) -> str:
    """A short look at the value; arrays and containers are described, not read."""
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is not None and dtype is not None:
            return _safe(f"{dtype}{list(shape)}")
        if isinstance(value, (list, tuple, Mapping, AbstractSet)):
            return f"{len(value)} items"
        return _safe(repr(value)[:200])
    except TROUBLE:
        return ""


def _scalar(value: Any) -> Any:
    """The number in a 0-dimensional array or tensor that is in this process's memory; None for anything else."""
    if getattr(value, "shape", None) != () or not hasattr(value, "dtype"):
        return None
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        return None
    number = value.item()
    return number if type(number) in {int, float, bool, str} else None


def _safe(value: Any) -> str:
    return cleaned(str(value))


def untagged(value: Any) -> Any:
    """Turn `$` objects back into the values they stand for."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in _UNTAG:
            with suppress(Exception):  # another program wrote this
                return _UNTAG[key](inner)
    return {key: untagged(item) for key, item in value.items()}


def _untagged_dict(pairs: list[Any]) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key, value in pairs:
        name = untagged(key)
        try:
            hash(name)
        except TypeError:  # a subclass that could be hashed came back as the plain type that can't
            name = placeholder_for(name, f"{{key {len(out)}}}", "not a key without its class")
        out[name] = untagged(value)
    return out


_SPOKEN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
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
    "$tuple": lambda items: tuple(untagged(item) for item in items),
    "$dict": _untagged_dict,
    "$image": lambda kept: Image(**untagged(kept)),
    "$lost": lambda kept: Placeholder(**kept),
    **{key: read for key, _, read in _SPOKEN.values()},
}
_TAG = re.compile(b'"(?:%s)":' % b"|".join(re.escape(key.encode()) for key in _UNTAG))


def as_json(rollout: Rollout) -> str:
    """The whole record, as `rollouts show --json` prints it: plain JSON, but for values that JSON cannot say."""
    return encode(_spread_out(rollout)) + "\n"


def _spread_out(value: Any) -> Any:
    """Records as dicts and their tuples as lists; what models and datasets made stays as it is."""
    if isinstance(value, (Rollout, ToolCall, Image, Tokens)):
        return {field.name: _spread_out(getattr(value, field.name)) for field in fields(value)}
    return [_spread_out(one) for one in value] if isinstance(value, tuple) else value
