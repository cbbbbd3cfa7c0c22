"""Where an image's pixels are, and the image as a screen shows it: upright, with eight bits to a colour."""

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
"""Fields that hold images, whatever their value looks like."""
_TYPES: Final = frozenset({"image", "image_url", "input_image"})
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_READ: Final = _ATOMS | {dict, list, tuple}
_MOST_VALUES: Final = 200_000
_SEE_THROUGH = frozenset({"LA", "La", "PA", "RGBa"})


def is_image_block(value: Any) -> bool:
    """Whether a mapping is a content block that holds an image."""
    kind = value.get("type") if issubclass(type(value), Mapping) else None
    return type(kind) is str and kind in _TYPES


def is_beyond_text(values: Collection[Any]) -> bool:
    """Whether there may be more in values than text and numbers: an image, bytes, an object of any kind.

    It looks at types and keys alone: most rollouts hold text, and looking closely costs ten times as much.
    """
    left, level = _MOST_VALUES, list(values)
    try:
        while level:
            kinds = set(map(type, level))
            if kinds <= _ATOMS:
                return False
            if not kinds <= _READ:
                return True
            dicts = [one for one in level if type(one) is dict] if dict in kinds else []
            keys = set(chain.from_iterable(dicts))
            if not IMAGE_NAMES.isdisjoint(keys) or ("type" in keys and any(map(is_image_block, dicts))):
                return True
            lists = [one for one in level if type(one) is list or type(one) is tuple]
            left -= len(level) + sum(map(len, dicts)) + sum(map(len, lists))
            if left < 0:
                return True
            level = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    except Exception:  # a key raises when it is compared
        return True
    return False


def file_of(image: Any, folder: str | Path) -> Path | None:
    """The image's file in the run's folder; None when its pixels are not there, or it points elsewhere."""
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
    """An image file in RGB on white, at most `side` pixels each way. Raises what Pillow makes of a broken file."""
    from PIL import Image as Pil

    with Pil.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
        image.draft("RGB", (side, side))  # a JPEG is then decoded at a fraction of its size
        return flatten_on_white(to_screen_colors(image, side))


def to_screen_colors(image: Any, side: int | None = None) -> Any:
    """The image in RGB, or RGBA where something may shine through; at most `side` pixels each way.

    The given image is left alone.
    """
    image = _coloured(_grey(image, side) if has_wide_pixels(image) else image)
    if side is not None and max(image.size) > side:
        image = image.copy()  # thumbnail() changes the image that it is called on
        image.thumbnail((side, side))
    return _upright(image)


def flatten_on_white(image: Any) -> Any:
    """In RGB: what shone through turns white."""
    if image.mode == "RGB":
        return image
    from PIL import Image as Pil

    page = Pil.new("RGBA", image.size, "white")
    page.alpha_composite(image.convert("RGBA"))
    return page.convert("RGB")


def has_wide_pixels(image: Any) -> bool:
    """Whether its pixels are numbers with more than eight bits, which screens cannot show as they are."""
    return image.mode in {"I", "F"} or image.mode.startswith("I;16")


def _grey(image: Any, side: int | None) -> Any:
    """Its darkest value black and its brightest white: what range the numbers were meant to have is not known."""
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
    known = [value for value in values if math.isfinite(value)]
    return min(known, default=0.0), max(known, default=0.0)


def _coloured(image: Any) -> Any:
    if image.mode in {"RGB", "RGBA"} and "transparency" not in image.info:
        return image
    if image.mode == "La":  # Pillow knows only this way from there
        image = image.convert("LA")
    return image.convert("RGBA" if image.mode in _SEE_THROUGH or "transparency" in image.info else "RGB")


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # EXIF data that does not decode says nothing
        return image
