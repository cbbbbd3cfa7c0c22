"""Images in a terminal: two pixels to a character, which works over ssh and in any terminal with colours."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.style import Style
from rollout_hookspecs import Image

from rollout_plugins.content.imaging import for_screen, on_white
from rollout_plugins.show.blocks import Cells

_SIDE = 400
_WIDTH, _HEIGHT = 48, 20


def file_of(image: Any, folder: Path) -> Path | None:
    """The image's file in the run's folder; None for one without pixels, or that points elsewhere."""
    if not isinstance(image, Image) or not isinstance(image.path, str):
        return None
    try:
        path = (folder / image.path).resolve()
        return path if path.is_file() and path.is_relative_to(folder.resolve()) else None
    except (OSError, ValueError):
        return None


def picture(source: Path | bytes) -> Callable[[int], list[Cells]]:
    """Draws an image in a width. It is opened when it is first drawn, and kept small from then on."""
    small: list[Any] = []

    def drawn(width: int) -> list[Cells]:
        if not small:
            small.append(_opened(source))
        return _half_blocks(small[0], min(width, _WIDTH)) if small[0] is not None else []

    return drawn


def _opened(source: Path | bytes) -> Any:
    from PIL import Image as Pil

    try:
        with Pil.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.draft("RGB", (_SIDE, _SIDE))
            return on_white(for_screen(image, _SIDE))
    except Exception:  # whatever a broken file makes of Pillow: its name and size stand above it
        return None


def _half_blocks(image: Any, width: int) -> list[Cells]:
    scale = min(width / image.width, 2 * _HEIGHT / image.height)
    columns, lines = max(round(image.width * scale), 1), max(round(image.height * scale / 2), 1)
    pixels = image.resize((columns, 2 * lines)).load()
    return [[("▀", _style(pixels[x, 2 * y], pixels[x, 2 * y + 1])) for x in range(columns)] for y in range(lines)]


def _style(above: tuple[int, int, int], below: tuple[int, int, int]) -> Style:
    return Style(color="#{:02x}{:02x}{:02x}".format(*above), bgcolor="#{:02x}{:02x}{:02x}".format(*below))
