"""Convert any value to plain JSON, for sinks and terminals. Always terminates, never raises, and keeps what it can."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, TextIO
from uuid import UUID

from rollout_hookspecs import Image, Placeholder

from rollout_plugins.content.limits import SENT_DEPTH, SENT_ITEMS, Nesting

#: Characters that a terminal interprets or hides: control characters, direction marks, lone surrogates.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_NOT_ASCII = re.compile("[^\x00-\x7e]")
_INT64 = 1 << 63
_TEXT_TYPES = (datetime, date, time, timedelta, Decimal, Fraction, PurePath, UUID)


def to_json_safe(value: Any, *, images: bool = False) -> Any:
    """Return the value with JSON types only.

    Numbers that JSON cannot represent become text (`NaN`, integers beyond 64 bits), lone surrogates become `\\udXXX`,
    and other values become a text `[type: reason]`. `Image` records stay unmodified if `images` is set, else they
    become text.
    """
    return _Converter(images).convert(value, 0)


def spell_non_finite(value: Any) -> Any:
    """Return the value with `NaN`, `Infinity` and `-Infinity` as texts, which float() and Number() can parse."""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {key: spell_non_finite(item) for key, item in value.items()}
    return [spell_non_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates escaped, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return str.__str__(text)


def json_text(value: Any) -> str:
    """Return any value as one line of JSON."""
    return json.dumps(to_json_safe(value), ensure_ascii=False)


def write_json(stream: TextIO, text: str) -> None:
    """Write JSON text, with escapes if the stream needs them."""
    stream.write(escape_for_stream(stream, text))


def escape_for_stream(stream: TextIO, text: str) -> str:
    """Escape characters that the stream cannot encode, or that a terminal would interpret."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = _NOT_ASCII.sub(_escaped, text)
    return UNSAFE.sub(_escaped, text) if stream.isatty() else text


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


class _Converter:
    """Converts one value. Limits the depth and the number of items."""

    def __init__(self, images: bool) -> None:
        self._images = images
        self._nesting = Nesting(SENT_DEPTH)
        self._left = SENT_ITEMS

    def convert(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            return _describe(value, "too much of it")
        try:
            return self._convert(value, depth)
        except Exception as error:
            return _describe(value, f"unreadable, {type(error).__name__}")

    def _convert(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return escape_surrogates(value)
        if isinstance(value, int):
            return _integer(int(value))
        if isinstance(value, float):
            return _number(float(value))
        if isinstance(value, Image):
            return value if self._images else str(value)
        if isinstance(value, Placeholder):
            return escape_surrogates(str(value))
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return self._container(value, depth)
        return self._foreign(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        if why := self._nesting.objection(value, depth):
            return _describe(value, why)
        self._nesting.enter(value)
        try:
            return self._mapping(value, depth) if isinstance(value, Mapping) else self._sequence(value, depth)
        finally:
            self._nesting.leave(value)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if self._left <= 0:
                result["…"] = _describe(value, "too much of it")
                break
            result[_free_key(key, result)] = self.convert(item, depth + 1)
        return result

    def _sequence(self, value: Iterable[Any], depth: int) -> list[Any]:
        result: list[Any] = []
        for item in value:
            result.append(self.convert(item, depth + 1))
            if self._left <= 0:
                break
        return result

    def _foreign(self, value: Any, depth: int) -> Any:
        if isinstance(value, _TEXT_TYPES):
            return escape_surrogates(str(value))
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            return self.convert(value.item(), depth + 1)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _describe(value, f"{len(value)} bytes")
        return _describe(value, "no JSON for it")


def _integer(value: int) -> int | str:
    if -_INT64 <= value < _INT64:
        return value
    return str(value) if value.bit_length() < 10_000 else f"[int: {value.bit_length()} bits]"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _free_key(key: Any, taken: Mapping[str, Any]) -> str:
    name = escape_surrogates(key) if isinstance(key, str) else _key_text(key)
    if name not in taken:
        return name
    return next(f"{name} ({n})" for n in range(2, len(taken) + 3) if f"{name} ({n})" not in taken)


def _key_text(key: Any) -> str:
    if key is None or isinstance(key, (bool, int, float)):
        return str(to_json_safe(key))
    return str(_describe(key, "not a text key"))


def _describe(value: Any, why: str) -> str:
    kind = type(value)
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return escape_surrogates(f"[{where}{kind.__qualname__}: {why}]")
