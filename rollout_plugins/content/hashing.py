"""One hash for equal content of any kind. Never raises.

Order of dict keys does not matter, types do: 1, 1.0, "1" and True are four values. Lists and tuples are one kind, as
hosts use either for the same thing. Images count by their pixels and by what decides how those are shown. What is
nested deeper than the store keeps does not count, and arrays beyond 256 MiB count by their shape.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

from rollout_hookspecs import Image

from rollout_plugins.content.limits import HASHED_DEPTH, Nesting

_LARGEST = 1 << 28
_SHOWN_BY = ("transparency", "icc_profile", "gamma", "chromaticity")
_SAYS_ORIENTATION = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
_ORIENTATION = 0x0112
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def content_hash(value: Any) -> str:
    """32 hex digits, the same for equal content in every process and version of Python."""
    try:
        return _Hasher().of(value, 0).hex()
    except RecursionError:
        return _digest(b"deep").hex()


def pixel_hash(image: Any) -> str:
    """32 hex digits for a decoded PIL image: equal pixels that are shown alike have equal hashes."""
    state = blake2b(f"{image.mode} {image.size[0]}x{image.size[1]}".encode(), digest_size=16)
    for name in _SHOWN_BY:
        if image.info.get(name) is not None:
            state.update(f"{name} {image.info[name]!r}".encode("utf-8", "surrogatepass"))
    if (turned := _orientation(image)) not in {None, 1}:
        state.update(f"orientation {turned}".encode())
    state.update(image.tobytes())
    if image.mode in {"P", "PA"}:  # the numbers may be labels, and palettes may give them any colours
        state.update(image.convert("RGBA").tobytes())
    return state.hexdigest()


def _orientation(image: Any) -> Any:
    """How EXIF or XMP data turn the image. Asked of another one: PIL notes on an image that it was asked."""
    from PIL import Image as Pil

    if not any(name in image.info for name in _SAYS_ORIENTATION):
        return None
    asked = Pil.new("1", (1, 1))
    asked.info = dict(image.info)
    try:
        return asked.getexif().get(_ORIENTATION)
    except Exception:  # EXIF data that does not decode turns nothing
        return None


def bytes_hash(data: bytes) -> str:
    """32 hex digits for bytes as they are."""
    return _digest(data).hex()


def is_pil(value: Any) -> bool:
    """Whether it is a PIL image; where PIL was never imported nothing is."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def is_loaded(image: Any) -> bool:
    """Whether a PIL image holds its pixels already: decoding it here could collide with its owner doing so."""
    core = getattr(image, "_im", None) or image.__dict__.get("im")
    return core is not None and not getattr(image, "tile", None)


def is_array(value: Any) -> bool:
    """Whether it is a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


class _Hasher:
    """Digests of containers, remembered by identity: one list that is held in a thousand places is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._nesting = Nesting(HASHED_DEPTH)

    def of(self, value: Any, depth: int) -> bytes:
        try:
            leaf = _leaf(value)
            if leaf is not None:
                return _digest(leaf)
            return self._container(value, depth)
        except RecursionError:
            raise
        except Exception:
            return _digest(b"?" + _type_name(value))

    def _container(self, value: Any, depth: int) -> bytes:
        ident = id(value)
        if ident in self._known:
            return self._known[ident][1]
        if self._nesting.objection(value, depth):
            return _digest(b"deep")
        self._nesting.enter(value)
        try:
            digest = self._inside(value, depth + 1)
        finally:
            self._nesting.leave(value)
        self._known[ident] = (value, digest)  # with the value, or another one may get its id
        return digest

    def _inside(self, value: Any, depth: int) -> bytes:
        if isinstance(value, Mapping):
            pairs = sorted(self.of(key, depth) + self.of(item, depth) for key, item in list(value.items()))
            return _digest(b"d" + b"".join(pairs))
        if isinstance(value, (set, frozenset)):
            return _digest(b"e" + b"".join(sorted(self.of(item, depth) for item in list(value))))
        if isinstance(value, (list, tuple)):
            return _digest(b"l" + b"".join([self.of(item, depth) for item in list(value)]))
        names = [field.name for field in fields(value)]
        parts = [self.of(getattr(value, name, None), depth) for name in names]
        return _digest(b"o" + _type_name(value) + b"".join(parts))


def _leaf(value: Any) -> bytes | None:
    """Tagged bytes of a value that holds no others; None for a container."""
    if value is None:
        return b"n"
    if value is True or value is False:  # before int, which they are too
        return b"b1" if value else b"b0"
    for kind, encode in _LEAVES:
        if isinstance(value, kind):
            return encode(value)
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return None
    return _foreign(value)


def _foreign(value: Any) -> bytes | None:
    if is_pil(value) and is_loaded(value):
        return b"p" + pixel_hash(value).encode()
    if is_tensor(value):
        return _tensor(value)
    if is_array(value):
        return _array(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return _numpy_scalar(value)
    if is_dataclass(value) and not isinstance(value, type):
        return None
    return b"?" + _type_name(value) + _ADDRESS.sub("", repr(value)).encode("utf-8", "surrogatepass")


# By the methods of the base classes, since a subclass such as numpy's float64 may show itself in another way. Integers
# in hex, since Python refuses to write very long ones in decimal.
_LEAVES: Sequence[tuple[type | tuple[type, ...], Callable[[Any], bytes]]] = (
    (str, lambda value: b"s" + str.encode(value, "utf-8", "surrogatepass")),
    (int, lambda value: b"i" + int.__format__(value, "x").encode()),
    (float, lambda value: b"f" + float.__repr__(value).encode()),
    ((bytes, bytearray, memoryview), lambda value: b"y" + bytes(value)),
    (Image, lambda value: b"p" + str(value.hash).encode("utf-8", "surrogatepass")),
)


def _tensor(value: Any) -> bytes:
    """A tensor in this process's memory by its values; one on a device by its kind, as reading it would wait."""
    kind = f"t{value.dtype}{tuple(value.shape)}".encode()
    if value.device.type != "cpu" or value.nbytes > _LARGEST:
        return kind + str(value.device).encode()
    value = value.detach()
    try:
        return kind + bytes(value.numpy().tobytes())
    except (TypeError, RuntimeError):  # bfloat16, sparse and the like have no numpy form
        return kind + repr(value.to_dense().tolist()).encode()


def _array(value: Any) -> bytes:
    kind = f"a{value.dtype}{value.shape}".encode()
    if value.nbytes > _LARGEST:
        return kind
    return kind + (repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())


def _numpy_scalar(value: Any) -> bytes:
    item = value.item()
    leaf = None if type(item) is type(value) else _leaf(item)
    return leaf if leaf is not None else b"?" + _type_name(value) + repr(value).encode()


def _type_name(value: Any) -> bytes:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}:".encode("utf-8", "surrogatepass")
