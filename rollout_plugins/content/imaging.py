"""Find images in values, load them from files, and convert them for screens: upright, with eight bits per channel."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping
from contextlib import suppress
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rollout_hookspecs import Image

from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import is_remote, remote_reader

IMAGE_NAMES: Final = frozenset({"image", "images"})
"""Names of fields that contain images, whatever their value."""
_TYPES: Final = frozenset({"image", "image_url", "input_image"})
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_READ: Final = _ATOMS | {dict, list, tuple}
_MOST_VALUES: Final = 200_000
_SEE_THROUGH = frozenset({"LA", "La", "PA", "RGBa"})


def is_image_block(value: Any) -> bool:
    """Return whether a mapping is a content block with an image."""
    kind = value.get("type") if issubclass(type(value), Mapping) else None
    return type(kind) is str and kind in _TYPES


def is_beyond_text(values: Collection[Any]) -> bool:
    """Return whether values may contain more than text and numbers: an image, bytes, or any other object.

    Only types and keys are checked: most rollouts are text, and a closer check costs ten times as much.
    """
    budget, level = _MOST_VALUES, list(values)
    try:
        while level:
            kinds = set(map(type, level))
            if kinds <= _ATOMS:
                return False
            if not kinds <= _READ:
                return True
            dicts = [value for value in level if type(value) is dict] if dict in kinds else []
            keys = set(chain.from_iterable(dicts))
            if not IMAGE_NAMES.isdisjoint(keys) or ("type" in keys and any(map(is_image_block, dicts))):
                return True
            lists = [value for value in level if type(value) is list or type(value) is tuple]
            budget -= len(level) + sum(map(len, dicts)) + sum(map(len, lists))
            if budget < 0:
                return True
            level = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    except Exception:  # a key raises when it is compared
        return True
    return False


def file_of(image: Any, folder: str | Path) -> Path | None:
    """Return the image's file in the run's folder; None if it is missing or outside the folder."""
    if not isinstance(image, Image) or not isinstance(image.path, str) or not folder:
        return None
    with suppress(OSError, ValueError):
        for node in nodes_of(Path(folder)):
            if is_remote(node):
                remote_reader().bring(node, image.path)
            path = (node / image.path).resolve()
            if path.is_file() and path.is_relative_to(node.resolve()):
                return path
    return None


def load_thumbnail(source: Path | bytes, side: int) -> Any:
    """Return an image file in RGB on a white background, at most `side` pixels wide and high.

    It raises what Pillow raises for a broken file.
    """
    from PIL import Image as Pil

    with Pil.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
        image.draft("RGB", (side, side))  # decodes a JPEG at a fraction of its size
        return flatten_on_white(to_screen_colors(image, side))


def to_screen_colors(image: Any, side: int | None = None) -> Any:
    """Return a copy in RGB, or in RGBA if it has transparency, at most `side` pixels wide and high."""
    image = _coloured(_grey(image, side) if has_wide_pixels(image) else image)
    if side is not None and max(image.size) > side:
        image = image.copy()  # thumbnail() works in place
        image.thumbnail((side, side))
    return _upright(image)


def flatten_on_white(image: Any) -> Any:
    """Return the image in RGB; transparent pixels become white."""
    if image.mode == "RGB":
        return image
    from PIL import Image as Pil

    page = Pil.new("RGBA", image.size, "white")
    page.alpha_composite(image.convert("RGBA"))
    return page.convert("RGB")


def has_wide_pixels(image: Any) -> bool:
    """Return whether pixels have more than eight bits per channel, which screens cannot show."""
    return image.mode in {"I", "F"} or image.mode.startswith("I;16")


def _grey(image: Any, side: int | None) -> Any:
    """Return an 8-bit image from black at the lowest value to white at the highest: the intended range is unknown."""
    wide = (image if image.mode == "F" else image.convert("I")).convert("F")
    if side is not None:
        wide.thumbnail((side, side))
    low, high = _range(wide)
    scale = 255 / (high - low) if high > low else 0.0
    offset = -low * scale if scale else 127.0
    grey = wide.point(lambda value: value * scale + offset).convert("L")
    grey.info = {name: value for name, value in image.info.items() if name != "transparency"}
    return grey


def _range(image: Any) -> tuple[float, float]:
    low, high = image.getextrema()
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    values = array("f", image.tobytes())
    finite_values = [value for value in values if math.isfinite(value)]
    return min(finite_values, default=0.0), max(finite_values, default=0.0)


def _coloured(image: Any) -> Any:
    if image.mode in {"RGB", "RGBA"} and "transparency" not in image.info:
        return image
    if image.mode == "La":  # Pillow converts this mode only to LA
        image = image.convert("LA")
    return image.convert("RGBA" if image.mode in _SEE_THROUGH or "transparency" in image.info else "RGB")


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # undecodable EXIF data has no effect
        return image
