"""Write one file for each distinct image of a run, named by the hash of its pixels.

A file with more than one decoded picture shows (further frames, more than eight bits per colour) is named by the hash
of its bytes, so that files which only start alike stay apart.

Files appear complete, and equal content always gets the same name. So several ranks may write into the folder, a
resumed run continues in it, and an image that is on disk is never encoded again.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from rollout_hookspecs import Image

from rollout_plugins.content.hashing import bytes_hash, is_loaded, pixel_hash
from rollout_plugins.content.imaging import flatten_on_white, has_wide_pixels, to_screen_colors
from rollout_plugins.plugins.images.words import LEFT_OUT, has_metadata, without_metadata
from rollout_plugins.system.confidentiality import is_confidential
from rollout_plugins.system.files import replace_file

MEMORY = 4096
FULL_SHARE = 0.9
THUMBNAIL_SIDE = 256

_KEPT_SUFFIXES = {
    "PNG": "png",
    "JPEG": "jpg",
    "MPO": "jpg",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tiff",
    "AVIF": "avif",
}
_SUFFIXES = tuple(dict.fromkeys(_KEPT_SUFFIXES.values()))
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_NEAREST_MODE = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA"}
_TIFF_MODES = frozenset({"I", "F", "CMYK", "LAB", "I;16B"})
_DEEP = frozenset({"AVIF", "JPEG2000"})  # may have more than eight bits without stating it once opened


class Unreadable(Exception):  # noqa: N818 - describes the image
    """The image can't be decoded; the message is a short reason."""


class MediaStore:
    """Writes images into `<run_dir>/media/`.

    `mode`: `keep` (lossless: the unmodified file, or PNG), `thumbnail` (at most `max_side` pixels, 256 by default, as
    `format` at `quality`) or `strip` (nothing on disk). `max_side` scales larger images down in `keep` too. `budget`:
    bytes that `media/` may take, shared by `ranks` processes: full images up to nine tenths of it, then thumbnails,
    then references without pixels.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        mode: str = "keep",
        max_side: int | None = None,
        format: str = "webp",  # noqa: A002 - the name in Pillow
        quality: int = 80,
        budget: int | None = None,
        ranks: int = 1,
    ) -> None:
        self.dir = Path(run_dir) / "media"
        self.bytes = 0
        """How many bytes this process has written."""
        self._mode = mode
        self._side = max_side
        self._thumbnail = {"format": format.upper(), "quality": quality}
        self._files = _files_in(self.dir)
        # Each process counts only its own bytes: querying the disk for each picture would cost more than an even
        # split.
        self._budget = None if budget is None else max(0, budget - sum(self._files.values())) // max(1, ranks)
        self._by_pixels: OrderedDict[str, Image] = OrderedDict()
        self._by_bytes: OrderedDict[str, Image] = OrderedDict()

    def put(self, image: Any, *, uri: str | None = None) -> Image:
        """Keep a PIL image."""
        _check_size(image)
        if not is_loaded(image):
            image = _load(image)
        record = self._put(image, pixel_hash(image), None)
        return record if uri is None else replace(record, uri=uri)

    def put_encoded(self, data: bytes, *, uri: str | None = None) -> Image:
        """Keep an image file given as bytes. Equal bytes are decoded only once."""
        key = bytes_hash(data)
        record = self._by_bytes.get(key)
        if record is None:
            record = _remember(self._by_bytes, key, self._put_file(data, key))
        return record if uri is None else replace(record, uri=uri)

    def _put_file(self, data: bytes, key: str) -> Image:
        image = _open(data)
        hidden = _describe_hidden(image)
        image = _load(image)
        is_secret = is_confidential() and has_metadata(image)
        if not hidden:  # a plain TIFF becomes a PNG, which every program can show
            record = self._put(image, pixel_hash(image), None if is_secret or image.format == "TIFF" else data)
            return with_note(record, LEFT_OUT) if is_secret else record
        record = self._put(image, key, None if is_secret else data)
        if is_secret:
            record = with_note(record, LEFT_OUT)
        is_whole = record.path is not None and record.note is None and image.format in _KEPT_SUFFIXES
        return record if is_whole else with_note(record, hidden)

    def _put(self, image: Any, digest: str, data: bytes | None) -> Image:
        record = self._by_pixels.get(digest)
        if record is None:
            record = _remember(self._by_pixels, digest, self._keep(image, digest, data))
        return record

    def _keep(self, image: Any, digest: str, data: bytes | None) -> Image:
        record = Image(hash=digest, width=image.size[0], height=image.size[1])
        if self._mode == "strip":
            return replace(record, note="pixels stripped")
        try:
            for small in (True,) if self._mode == "thumbnail" else (False, True):
                record_with_file = self._write(record, image, data, small=small)
                if record_with_file is not None:
                    return record_with_file
        except OSError as error:
            return replace(record, note=f"not written: {error.strerror or error}")
        return replace(record, note="media budget used up, pixels not kept")

    def _write(self, record: Image, image: Any, data: bytes | None, *, small: bool) -> Image | None:
        """Write the image's file and return the record with its path; None if the budget has no room for it."""
        name, note = self._name(record, image, small=small)
        file_name = next((file for suffix in _SUFFIXES if (file := f"{name}.{suffix}") in self._files), None)
        if file_name is None:
            content, suffix = self._encode(image, data, small=small, resized=name != record.hash)
            file_name = f"{name}.{suffix}"
            if not self._fits(len(content), small=small):
                return None
            self._save(file_name, content)
        if file_name.endswith(".png") and image.mode not in _PNG_MODES | _TIFF_MODES:
            note = f"{image.mode} converted to {_NEAREST_MODE.get(image.mode, 'RGB')}{', ' + note if note else ''}"
        return replace(record, path=f"media/{file_name}", note=note)

    def _name(self, record: Image, image: Any, *, small: bool) -> tuple[str, str | None]:
        """Return the file's stem, and a note about the image. A reduced image has its size in its name."""
        side = self._limit(small=small)
        if small:
            reason = "thumbnail" if self._mode == "thumbnail" else "thumbnail, media budget nearly used up"
            return f"{record.hash}-{side}", reason
        if side is not None and max(image.size) > side:
            return f"{record.hash}-{side}", f"at most {side} pixels per side"
        return record.hash, None

    def _limit(self, *, small: bool) -> int | None:
        if not small:
            return self._side
        return (self._side or THUMBNAIL_SIDE) if self._mode == "thumbnail" else THUMBNAIL_SIDE

    def _encode(self, image: Any, data: bytes | None, *, small: bool, resized: bool) -> tuple[bytes, str]:
        if data is not None and not resized and image.format in _KEPT_SUFFIXES:
            return data, _KEPT_SUFFIXES[image.format]
        if is_confidential():
            image = without_metadata(image)
        side = self._limit(small=small)
        if small:
            kind = str(self._thumbnail["format"])
            shown = to_screen_colors(image, side)
            return _saved(shown if kind == "WEBP" else flatten_on_white(shown), **self._thumbnail), _KEPT_SUFFIXES[
                kind
            ]
        is_larger = side is not None and max(image.size) > side
        # Saving changes attributes of the object, and this object is not ours.
        image = _reduced(image, side) if is_larger else image.copy()
        if image.mode in _TIFF_MODES:
            return _saved(image, format="TIFF", compression="tiff_adobe_deflate", **_exif(image)), "tiff"
        if image.mode not in _PNG_MODES:
            image = image.convert(_NEAREST_MODE.get(image.mode, "RGB"))
        return _saved(image, format="PNG", compress_level=1, **_exif(image)), "png"

    def _fits(self, size: int, *, small: bool) -> bool:
        share = 1.0 if small else FULL_SHARE
        return self._budget is None or self.bytes + size <= self._budget * share

    def _save(self, name: str, content: bytes) -> None:
        target = self.dir / name
        if not _has_content(target):  # another rank may have been first
            self.dir.mkdir(parents=True, exist_ok=True)
            # Syncing each picture to disk would hold up the others. A power cut may leave an empty file, which is
            # detected above.
            replace_file(target, lambda path: path.write_bytes(content), sync=False)
            self.bytes += len(content)
        self._files[name] = len(content)


def with_note(record: Image, note: str) -> Image:
    """Return the record with another note."""
    return replace(record, note=note if record.note is None else f"{record.note}; {note}")


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _files_in(folder: Path) -> dict[str, int]:
    """Return the sizes of the files by name, without unfinished and empty files."""
    try:
        with os.scandir(folder) as entries:
            sizes = {entry.name: entry.stat().st_size for entry in entries if not entry.name.startswith(".")}
    except OSError:
        return {}
    return {name: size for name, size in sizes.items() if size}


def _remember(memory: OrderedDict[str, Image], key: str, record: Image) -> Image:
    """Cache a record, unless it has no file because writing failed: that is tried again."""
    if not (record.note or "").startswith("not written"):
        memory[key] = record
        if len(memory) > MEMORY:
            memory.popitem(last=False)
    return record


def _open(data: bytes) -> Any:
    from PIL import Image as Pil

    try:
        image = Pil.open(BytesIO(data))
    except Exception as error:
        raise Unreadable(_reason_for(error)) from error
    _check_size(image)
    return image


def first_of_several(data: bytes) -> str | None:
    """Return the hash of the first of several frames; "" if there is only one, None if this is not an image file."""
    try:
        image = _open(data)
        return pixel_hash(_load(image)) if _has_frames(image) else ""
    except Unreadable:
        return None


def _has_frames(image: Any) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # the file breaks off after the first frame
        return False


def _describe_hidden(image: Any) -> str:
    """Return a note about what the opened file contains besides the decoded picture; "" if there is nothing else."""
    if _has_frames(image):
        return "the first of several frames"
    is_deep = image.format in _DEEP or (";16" in repr(image.tile) and not has_wide_pixels(image))
    return "colours of more than 8 bits read as 8" if is_deep else ""


def _load(image: Any) -> Any:
    try:
        image.load()
    except Exception as error:
        raise Unreadable(_reason_for(error)) from error
    return image


def _reason_for(error: Exception) -> str:
    names: Mapping[str, str] = {
        "UnidentifiedImageError": "not an image format that Pillow knows",
        "DecompressionBombError": "larger than Pillow's limit (PIL.Image.MAX_IMAGE_PIXELS)",
        "DecompressionBombWarning": "larger than Pillow's limit (PIL.Image.MAX_IMAGE_PIXELS)",
    }
    return names.get(type(error).__name__) or f"not decodable: {str(error)[:120] or type(error).__name__}"


def _check_size(image: Any) -> None:
    from PIL import Image as Pil

    width, height = image.size
    if not width or not height:
        raise Unreadable(f"an empty image, {width} x {height}")
    if Pil.MAX_IMAGE_PIXELS is not None and width * height > Pil.MAX_IMAGE_PIXELS:
        raise Unreadable(f"{width} x {height}, larger than Pillow's limit (PIL.Image.MAX_IMAGE_PIXELS)")


def _reduced(image: Any, side: int | None) -> Any:
    """Return a copy with at most `side` pixels per side; Pillow cannot reduce every kind of 16-bit image."""
    image = image.convert("I") if image.mode.startswith("I;16") else image.copy()
    image.thumbnail((side, side))
    return image


def _exif(image: Any) -> dict[str, bytes]:
    """Return the EXIF data for saving, because they state the orientation."""
    exif = image.info.get("exif")
    return {"exif": exif} if isinstance(exif, bytes) else {}


def _saved(image: Any, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()
