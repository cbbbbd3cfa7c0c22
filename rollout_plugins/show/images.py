"""Draw images in a terminal with two pixels per character, which works over ssh and in any terminal with colours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rich.style import Style

from rollout_plugins.content.imaging import load_thumbnail
from rollout_plugins.show.blocks import Cells

_SIDE = 400
_WIDTH, _HEIGHT = 48, 20


def picture(source: Path | bytes) -> Callable[[int], list[Cells]]:
    """Return a function that draws an image in a given width. The image is opened once, when it is first drawn."""
    load = cache(lambda: _load(source))

    def draw(width: int) -> list[Cells]:
        image = load()
        return [] if image is None else _half_blocks(image, min(width, _WIDTH))

    return draw


def _load(source: Path | bytes) -> Any:
    try:
        return load_thumbnail(source, _SIDE)
    except Exception:  # a broken file; its name and size are shown above
        return None


def _half_blocks(image: Any, width: int) -> list[Cells]:
    scale = min(width / image.width, 2 * _HEIGHT / image.height)
    columns, lines = max(round(image.width * scale), 1), max(round(image.height * scale / 2), 1)
    pixels = image.resize((columns, 2 * lines)).load()
    return [[("▀", _style(pixels[x, 2 * y], pixels[x, 2 * y + 1])) for x in range(columns)] for y in range(lines)]


def _style(above: tuple[int, int, int], below: tuple[int, int, int]) -> Style:
    return Style(color="#{:02x}{:02x}{:02x}".format(*above), bgcolor="#{:02x}{:02x}{:02x}".format(*below))
