"""Pools of the report's texts and images, which hold each of them once: siblings share their prompt.

If all of them are too much for one file, the longest texts are cut and the images reduced, only as far as necessary.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from rollout_hookspecs import Image

from rollout_plugins.content.imaging import file_of, to_screen_colors
from rollout_plugins.show.text import clean, readable, shorten

# Characters of one text, and of all, before gzip reduces them to a fifth or less.
LONGEST, MOST = 1_000_000, 24_000_000
SHORT = 200
# Bytes of all images together, and of one that is kept unmodified.
ROOM, AS_IT_IS = 4 * 2**20, 96 * 2**10
SIDES = (1024, 640, 400, 256, 128, 64)
_KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
_SMALLEST = 700  # fewer bytes show nothing

Encoded = tuple[str, bytes]
"""A media type and the file."""


class Texts:
    """A pool of texts, to which the report refers by number."""

    def __init__(self, *, longest: int = LONGEST, most: int = MOST) -> None:
        self._longest = longest
        self._most = most
        self._numbers: dict[str, int] = {}
        self.size = 0
        """How many characters it contains so far."""

    @property
    def is_full(self) -> bool:
        """Whether further text would only cut the others shorter."""
        return self.size > 4 * self._most

    def add(self, value: Any) -> int:
        """Return the number of a text, with control and bidirectional characters spelled out."""
        text = clean(shorten(readable(value), self._longest))
        number = self._numbers.setdefault(text, len(self._numbers))
        if number == len(self._numbers) - 1:
            self.size += len(text)
        return number

    def scalar(self, value: Any) -> Any:
        """Return a number or a short text itself, or the number of a longer text. NaN and infinities become text."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) < 2**53:
            return int(value)
        if isinstance(value, float):
            return float(value) if value - value == 0 else str(float(value))
        if isinstance(value, str) and len(value) <= SHORT:
            return clean(value)
        return {"text": self.add(value)}

    def all(self) -> tuple[list[str], int]:
        """Return the texts by number, and how many of them were cut to fit."""
        length = _fitting(list(map(len, self._numbers)), self._most)
        cut = [shorten(text, length) for text in self._numbers]
        return cut, sum(len(text) > length for text in self._numbers)


def _fitting(lengths: list[int], most: int) -> int:
    """Return the length to which the longest texts must be cut so that all together have at most `most` characters."""
    left, count = most, len(lengths)
    for length in sorted(lengths):
        if length * count > left:
            return left // count
        left -= length
        count -= 1
    return max(lengths, default=0)


class Pictures:
    """A pool of images, which are reduced to fit."""

    def __init__(self, folder: Path, *, room: int = ROOM) -> None:
        self._folder = folder
        self._room = room
        self._numbers: dict[Any, int] = {}
        self._images: list[Image | bytes] = []
        self._facts: list[dict[str, Any]] = []

    def add(self, image: Image | bytes) -> int:
        """Return the number of an image of the run, or of an image file that a plugin created."""
        key = image if isinstance(image, bytes) else (str(image.hash), image.path, image.note)
        if key not in self._numbers:
            self._numbers[key] = len(self._facts)
            self._images.append(image)
            self._facts.append({} if isinstance(image, bytes) else _facts(image))
        return self._numbers[key]

    def all(self, progress: Callable[[int, int], object]) -> tuple[list[dict[str, Any]], int]:
        """Return the images by number, as data URLs, and how many were left out or reduced to save room."""
        sources = [self._source(image) for image in self._images]
        count, left, spared = sum(source is not None for source in sources), self._room, 0
        for number, (facts, source) in enumerate(zip(self._facts, sources, strict=True)):
            progress(number, len(sources))
            if source is None:
                facts.setdefault("why", "its pixels were not stored")
                continue
            fitted = _fit(source, max(left // max(count, 1), _SMALLEST))
            count -= 1
            if fitted is None:
                facts["why"] = "it cannot be decoded"
                continue
            encoded, reduced = fitted
            if len(encoded[1]) > left:
                facts["why"] = "left out to keep this file small"
                spared += 1
                continue
            left -= len(encoded[1])
            spared += reduced
            facts["reduced"] = reduced
            facts["data"] = f"data:{encoded[0]};base64,{base64.b64encode(encoded[1]).decode()}"
        return self._facts, spared

    def _source(self, image: Image | bytes) -> bytes | Path | None:
        """Return where the pixels are, which is inside the run's folder whatever the record states."""
        return image if isinstance(image, bytes) else file_of(image, self._folder)


def _facts(image: Image) -> dict[str, Any]:
    """Return the facts of an image besides its pixels, with its address only as text."""
    facts = {"name": image.uri if isinstance(image.uri, str) else None, "note": image.note}
    values: dict[str, Any] = {name: clean(str(value))[:200] for name, value in facts.items() if value}
    if isinstance(image.width, int) and isinstance(image.height, int):
        values["width"], values["height"] = image.width, image.height
    return values


def _fit(source: bytes | Path, most: int) -> tuple[Encoded, bool] | None:
    """Return the image in about `most` bytes, and whether it was reduced; None if it cannot be decoded."""
    from PIL import Image as Pil

    try:
        data = source if isinstance(source, bytes) else source.read_bytes()
        with Pil.open(BytesIO(data)) as image:
            kind = _KINDS.get(image.format or "")
            image.load()
            if kind and len(data) <= min(most, AS_IT_IS):
                return (kind, data), False
            smaller, is_reduced = _smaller(image, most)
            return ("image/webp", smaller), is_reduced
    except Exception:  # a broken file, a decompression bomb, or an unsupported mode: the page shows a note instead
        return None


def _smaller(image: Any, most: int) -> tuple[bytes, bool]:
    """Return the largest version that fits, or else the smallest one."""
    image = to_screen_colors(image)
    encoded, full = b"", image.size
    for side in SIDES:
        image.thumbnail((side, side))
        buffer = BytesIO()
        image.save(buffer, format="WEBP", quality=80, method=2)
        encoded = buffer.getvalue()
        if len(encoded) <= most:
            break
    return encoded, image.size != full
