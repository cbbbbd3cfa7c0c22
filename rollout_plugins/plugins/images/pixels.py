"""Recognise images in all forms that occur: PIL objects, encoded bytes, paths, URLs, arrays and tensors."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlparse

from rollout_hookspecs import Image

from rollout_plugins.content.hashing import bytes_hash, is_array, is_loaded, is_pil, is_tensor, pixel_hash
from rollout_plugins.plugins.images.media import MediaStore, Unreadable, first_of_several, with_note

MAX_FILE_BYTES = 1 << 28
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
_MAGIC = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_URL = re.compile(r"(?a)[a-z][a-z0-9+.\-]{1,30}://", re.IGNORECASE)


def keep_image(value: Any, media: MediaStore, *, certain: bool) -> Image | None:
    """Write the pixels of an image and return its record; None if the value is not an image.

    `certain`: the value stands where an image must be. Then text is taken as a path, URL or base64, and a value that
    cannot be read raises `Unreadable`. Otherwise text and bytes count only if they are plainly an image.
    """
    if isinstance(value, Image):
        return value
    if is_pil(value):
        return _keep_pil(value, media)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return media.put_encoded(data) if certain or looks_encoded(data) else None
    if isinstance(value, (str, PurePath)):
        return _keep_text(str(value), media, certain=certain)
    if isinstance(value, Mapping):
        return _keep_file_struct(value, media, certain=certain)
    if is_array(value) or is_tensor(value):
        return _keep_array(value, media, certain=certain)
    return None


def looks_encoded(data: bytes) -> bool:
    """Check whether the bytes start like an image file."""
    return data.startswith(_MAGIC) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP") or data[4:12] == b"ftypavif"


def _keep_pil(image: Any, media: MediaStore) -> Image:
    """Keep a PIL image. One that is not decoded is read from its source, because its owner may be decoding it right
    now.
    """
    if is_loaded(image):
        return _keep_decoded(image, media)
    if callable(getattr(image, "tell", None)) and image.tell():
        raise Unreadable("a later frame of a file that is not decoded")
    name = _filename(image)
    if name is not None:
        return _keep_file(name, media)
    data = _in_memory(image)
    if data is None:
        raise Unreadable("opened from a stream and not decoded")
    return media.put_encoded(data)


def _keep_decoded(image: Any, media: MediaStore) -> Image:
    """Keep the pixels, or the file they came from if it has further frames and the image still shows the first."""
    name = _filename(image)
    has_frames = vars(image).get("is_animated")  # the property of a GIF would move its owner's position in the file
    if not has_frames and (has_frames is not None or image.format != "GIF"):
        return media.put(image, uri=name)
    data = _in_memory(image) if name is None else _read(name)
    first = first_of_several(data) if data is not None else None
    if data is not None and first and first == pixel_hash(image):
        return media.put_encoded(data, uri=name)
    record = media.put(image, uri=name)
    if first or has_frames:
        return with_note(record, "one of several frames")
    return record if first is not None else with_note(record, "a frame of a GIF that may have others")


def _read(name: str) -> bytes | None:
    try:
        path = Path(name)
        return path.read_bytes() if path.stat().st_size <= MAX_FILE_BYTES else None
    except OSError:
        return None


def _in_memory(image: Any) -> bytes | None:
    """Return the file's bytes if the image was opened from memory."""
    source: Any = getattr(image, "fp", None) or getattr(image, "_fp", None)
    try:
        return bytes(source.getvalue())
    except (AttributeError, ValueError):
        return None


def _filename(image: Any) -> str | None:
    name = getattr(image, "filename", None)
    return os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) and name else None


def _keep_text(text: str, media: MediaStore, *, certain: bool) -> Image | None:
    if text[:11].lower() == "data:image/" or (certain and text[:5].lower() == "data:"):
        return media.put_encoded(_data_url(text))
    if text[:7].lower() == "file://":
        return _keep_file(unquote(urlparse(text).path), media)
    if _URL.match(text):
        return reference(text)
    if certain or text.lower().endswith(_SUFFIXES):
        return _path_or_base64(text, media, certain=certain)
    return None


def reference(url: str) -> Image:
    """Return the record of a remote image, which is identified by its address and never fetched."""
    return Image(hash=bytes_hash(url.encode("utf-8", "surrogatepass")), uri=url, note="remote, not fetched")


def _path_or_base64(text: str, media: MediaStore, *, certain: bool) -> Image | None:
    if len(text) < 4096 and "\0" not in text and _is_file(text):
        return _keep_file(text, media)
    if not certain:
        return None
    try:
        data = _base64(text)
    except ValueError:
        data = b""
    if not data:
        raise Unreadable("no such file, and neither a URL nor base64")
    return media.put_encoded(data)


def _base64(text: str | bytes) -> bytes:
    """Decode base64 in either alphabet, with or without line breaks and padding."""
    packed = b"".join((text.encode() if isinstance(text, str) else text).split()).rstrip(b"=")
    packed = packed.translate(_URL_SAFE) + b"=" * (-len(packed) % 4)
    return base64.b64decode(packed, validate=True)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _keep_file(name: str, media: MediaStore) -> Image:
    path = Path(name)
    try:
        if not path.is_file():
            raise Unreadable("no such file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise Unreadable(f"the file has more than {MAX_FILE_BYTES >> 20} MiB")
        return media.put_encoded(path.read_bytes(), uri=name)
    except OSError as error:
        raise Unreadable(f"not readable: {error.strerror or error}") from error


def _data_url(text: str) -> bytes:
    head, _, body = text.partition(",")
    try:
        data = unquote_to_bytes(body)
        return _base64(data) if head.lower().endswith(";base64") else data
    except (binascii.Error, ValueError) as error:
        raise Unreadable(f"a data URL that does not decode: {error}") from error


def _keep_file_struct(value: Mapping[Any, Any], media: MediaStore, *, certain: bool) -> Image | None:
    """Keep the `{"bytes": …, "path": …}` of the datasets library, which uses the same form for audio."""
    if set(value) != {"bytes", "path"}:
        return None
    data, path = value["bytes"], value["path"]
    if isinstance(data, (bytes, bytearray)) and (certain or looks_encoded(bytes(data))):
        return media.put_encoded(bytes(data), uri=path if isinstance(path, str) else None)
    if data is None and isinstance(path, (str, PurePath)):
        return _keep_text(str(path), media, certain=certain)
    return None


def _keep_array(value: Any, media: MediaStore, *, certain: bool) -> Image | None:
    if not certain:
        return None
    first = is_tensor(value)  # torch puts the colours first, numpy last
    if first:
        if value.device.type != "cpu":
            raise Unreadable(f"on {value.device}, not copied from there")
        value = value.detach().numpy() if value.dtype.is_floating_point is False else value.detach().float().numpy()
    array, note = _as_storable(_colours_last(value, first=first))
    from PIL import Image as Pil

    image = media.put(Pil.fromarray(array))
    return image if note is None else with_note(image, note)


def _colours_last(array: Any, *, first: bool) -> Any:
    """Return the array as height, width and, unless it is grey, colours."""
    if array.ndim == 3:
        at_start, at_end = array.shape[0] in {1, 3, 4}, array.shape[2] in {1, 3, 4}
        if at_start and (first or not at_end):
            array, at_end = array.transpose(1, 2, 0), True
        if at_end:
            return array[:, :, 0] if array.shape[2] == 1 else array
    if array.ndim == 2:
        return array
    raise Unreadable(f"an array of shape {list(array.shape)}, which is not a single image")


def _as_storable(array: Any) -> tuple[Any, str | None]:
    """Return the array in a type that image files can hold, and a note about any change."""
    import numpy as np

    if array.size > MAX_FILE_BYTES:
        raise Unreadable(f"an array of {array.size} values")
    if array.dtype == np.uint8 or (array.dtype == np.uint16 and array.ndim == 2):
        return np.ascontiguousarray(array), None
    if array.dtype == bool:
        return array.astype(np.uint8) * 255, None
    if array.dtype.kind == "f" and array.size and np.isfinite(array).all() and 0 <= array.min() <= array.max() <= 1:
        return np.round(array * 255).astype(np.uint8), f"{array.dtype} values rounded to 8 bits"
    if array.dtype.kind in "iu" and array.size and 0 <= array.min() <= array.max() <= 255:
        return array.astype(np.uint8), None
    raise Unreadable(f"an array of {array.dtype} whose values are not pixels")
