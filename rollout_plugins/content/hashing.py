"""Hash values by content, without raising.

The order of dict keys does not matter, but types do: 1, 1.0, "1" and True differ. Lists and tuples are equal, because
trainers use both for the same data. Images are hashed by their pixels and by everything that affects how they are
displayed. Values below the stored depth are ignored, and arrays beyond 256 MiB are hashed by their shape only.
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
    """Return 32 hex digits that are the same for equal content in every process and Python version."""
    try:
        return _Hasher().of(value, 0).hex()
    except RecursionError:
        return _digest(b"deep").hex()


def pixel_hash(image: Any) -> str:
    """Return 32 hex digits for a decoded PIL image; images that are displayed alike have equal hashes."""
    state = blake2b(f"{image.mode} {image.size[0]}x{image.size[1]}".encode(), digest_size=16)
    for name in _SHOWN_BY:
        if image.info.get(name) is not None:
            state.update(f"{name} {image.info[name]!r}".encode("utf-8", "surrogatepass"))
    if (turned := _orientation(image)) not in {None, 1}:
        state.update(f"orientation {turned}".encode())
    state.update(image.tobytes())
    if image.mode in {"P", "PA"}:  # pixels of these modes are indices into a palette
        state.update(image.convert("RGBA").tobytes())
    return state.hexdigest()


def _orientation(image: Any) -> Any:
    """Return the orientation in EXIF or XMP data. PIL caches it on the image that is queried, so query another one."""
    from PIL import Image as Pil

    if not any(name in image.info for name in _SAYS_ORIENTATION):
        return None
    probe = Pil.new("1", (1, 1))
    probe.info = dict(image.info)
    try:
        return probe.getexif().get(_ORIENTATION)
    except Exception:  # undecodable EXIF data has no effect
        return None


def bytes_hash(data: bytes) -> str:
    """Return 32 hex digits for bytes."""
    return _digest(data).hex()


def is_pil(value: Any) -> bool:
    """Return whether the value is a PIL image, without importing PIL."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def is_loaded(image: Any) -> bool:
    """Return whether a PIL image has its pixels in memory. Loading it here could race with its owner."""
    core = getattr(image, "_im", None) or image.__dict__.get("im")
    return core is not None and not getattr(image, "tile", None)


def is_array(value: Any) -> bool:
    """Return whether the value is a numpy array, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_tensor(value: Any) -> bool:
    """Return whether the value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


class _Hasher:
    """Hashes one value. Caches digests by identity, so that a list that occurs a thousand times is hashed once."""

    def __init__(self) -> None:
        self._digests: dict[int, tuple[Any, bytes]] = {}
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
        if ident in self._digests:
            return self._digests[ident][1]
        if self._nesting.objection(value, depth):
            return _digest(b"deep")
        self._nesting.enter(value)
        try:
            digest = self._inside(value, depth + 1)
        finally:
            self._nesting.leave(value)
        self._digests[ident] = (value, digest)  # keeps the value alive, so that its id stays unique
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
    """Return tagged bytes of a value without children; None for a container."""
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


# Use the methods of the base classes, because a subclass such as numpy's float64 may override them. Integers are in
# hex, because Python limits the length of decimal integers.
_LEAVES: Sequence[tuple[type | tuple[type, ...], Callable[[Any], bytes]]] = (
    (str, lambda value: b"s" + str.encode(value, "utf-8", "surrogatepass")),
    (int, lambda value: b"i" + int.__format__(value, "x").encode()),
    (float, lambda value: b"f" + float.__repr__(value).encode()),
    ((bytes, bytearray, memoryview), lambda value: b"y" + bytes(value)),
    (Image, lambda value: b"p" + str(value.hash).encode("utf-8", "surrogatepass")),
)


def _tensor(value: Any) -> bytes:
    """Return the bytes of a tensor on the CPU; only the type of one on a device, because reading it would wait."""
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
