"""JSON text that loses nothing.

Ordinary values are ordinary JSON. What JSON cannot say is an object with one key that starts with `$`:
`$float` (NaN, infinities), `$int` (beyond 64 bits), `$str` (lone surrogates), `$bytes`, `$tuple`, `$dict` (other
keys than strings), `$image` and, for what could not be kept at all, `$lost`. `decode(encode(x)) == x`, types included.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson
from rollout_hookspecs import Image, Placeholder

MAX_DEPTH = 240
MAX_CONTAINERS = 200_000
_MIN_INT, _MAX_INT = -(2**63), 2**64


def encode(value: Any, lost: list[Placeholder] | None = None) -> str:
    """Any value as JSON text. What can't be kept becomes a `Placeholder`, also appended to `lost`. Never raises."""
    if _plain(value, 0, [MAX_CONTAINERS]):
        try:
            return orjson.dumps(value).decode()
        except (TypeError, ValueError, RecursionError):
            pass  # a lone surrogate or an integer beyond 64 bits, somewhere inside
    tagger = _Tagger()
    tagged = tagger.tag(value, "", 0)
    if lost is not None:
        lost += tagger.lost
    return orjson.dumps(tagged).decode()


def tagged(value: Any) -> Any:
    """The JSON structure that `encode` would write, for files that are laid out for people."""
    return _Tagger().tag(value, "", 0)


def decode(text: str | bytes) -> Any:
    """The value that `encode` was given."""
    value = orjson.loads(text)
    mark = '"$' if isinstance(text, str) else b'"$'
    return untagged(value) if mark in text else value  # type: ignore[operator]


def clean(text: str) -> bool:
    """Whether the text is valid Unicode, as files need it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any, depth: int, left: list[int]) -> bool:
    """Whether orjson writes the value exactly. Integers and surrogates aside: there orjson itself objects."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        left[0] -= 1
        return (
            depth < MAX_DEPTH
            and left[0] > 0
            and all(type(k) is str and k[:1] != "$" and _plain(v, depth + 1, left) for k, v in value.items())
        )
    if kind is list:
        left[0] -= 1
        return depth < MAX_DEPTH and left[0] > 0 and all(_plain(v, depth + 1, left) for v in value)
    return False


class _Tagger:
    """The slow, careful way. `depth` counts levels of the JSON that is written."""

    def __init__(self) -> None:
        self.lost: list[Placeholder] = []
        self.left = MAX_CONTAINERS

    def tag(self, value: Any, where: str, depth: int) -> Any:
        try:
            return self._tag(value, where, depth)
        except Exception as error:
            return self._lose(value, where, f"raised {type(error).__name__}")

    def _tag(self, value: Any, where: str, depth: int) -> Any:  # noqa: C901, PLR0912 - one branch for each kind of value
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            return text if clean(text) else {"$str": json.dumps(text)}
        if isinstance(value, int):
            number = int.__pos__(value)
            return number if _MIN_INT <= number < _MAX_INT else {"$int": hex(number)}
        if isinstance(value, float):
            real = float.__pos__(value)
            return real if math.isfinite(real) else {"$float": repr(real)}
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, Image):
            return {"$image": {f.name: v for f in fields(Image) if (v := getattr(value, f.name)) is not None}}
        if isinstance(value, Placeholder):
            return {"$lost": {f.name: _safe(getattr(value, f.name)) for f in fields(Placeholder)}}
        if isinstance(value, (dict, list, tuple, Mapping)):
            self.left -= 1
            if depth >= MAX_DEPTH - 4:
                return self._lose(value, where, "nested too deep")
            if self.left <= 0:
                return self._lose(value, where, "too many containers")
            return self._container(value, where, depth)
        scalar = _scalar(value)
        if scalar is not None:
            return self._tag(scalar, where, depth)
        return self._lose(value, where, "no JSON form")

    def _container(self, value: Any, where: str, depth: int) -> Any:
        if isinstance(value, list):
            return [self.tag(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(list.__iter__(value))]
        if isinstance(value, tuple):
            return {"$tuple": [self.tag(v, f"{where}[{i}]", depth + 2) for i, v in enumerate(tuple.__iter__(value))]}
        items = list(dict.items(value)) if isinstance(value, dict) else list(value.items())
        if all(type(key) is str and key[:1] != "$" and clean(key) for key, _ in items):
            return {key: self.tag(v, f"{where}.{key}", depth + 1) for key, v in items}
        return {"$dict": [[self.tag(k, f"{where}{{key}}", depth + 3), self.tag(v, where, depth + 3)] for k, v in items]}

    def _lose(self, value: Any, where: str, why: str) -> dict[str, Any]:
        placeholder = placeholder_for(value, where, why)
        self.lost.append(placeholder)
        return {"$lost": {f.name: getattr(placeholder, f.name) for f in fields(Placeholder)}}


def placeholder_for(value: Any, where: str, why: str) -> Placeholder:
    """What stands in place of a value that can't be kept."""
    kind = type(value)
    name = _safe(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    return Placeholder(type=name, where=_safe(where), why=why, preview=_preview(value))


def _preview(value: Any) -> str:
    """A short look at the value; arrays and containers are described, not read."""
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is not None and dtype is not None:
            return _safe(f"{dtype}{list(shape)}")
        if isinstance(value, (list, tuple, Mapping)):
            return f"{len(value)} items"
        return _safe(repr(value)[:200])
    except Exception:
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


def _safe(text: Any) -> str:
    return str(text).encode("utf-8", "replace").decode()


def untagged(value: Any) -> Any:
    """Turn `$` objects back into the values they stand for."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in _UNTAG:
            return _UNTAG[key](inner)
    return {key: untagged(item) for key, item in value.items()}


_UNTAG: dict[str, Any] = {
    "$str": json.loads,
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$bytes": base64.b64decode,
    "$tuple": lambda items: tuple(untagged(item) for item in items),
    "$dict": lambda pairs: {untagged(key): untagged(item) for key, item in pairs},
    "$image": lambda kept: Image(**kept),
    "$lost": lambda kept: Placeholder(**kept),
}
