"""Detect and remove text in an image file besides the picture: EXIF and XMP data, comments. It may hold secrets."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

LEFT_OUT: Final = "the metadata of its file was left out"
_ORIENTATION: Final = 0x0112
# Entries that only describe how the picture looks. Any other entry may be text.
_APPEARANCE: Final = frozenset({
    "adobe", "adobe_transform", "aspect", "background", "bbox", "blend", "chromaticity", "compression",
    "default_image", "disposal", "dpi", "duration", "gamma", "icc_profile", "interlace", "jfif", "jfif_density",
    "jfif_unit", "jfif_version", "loop", "progression", "progressive", "srgb", "timestamp", "transparency", "version",
})  # fmt: skip
_JPEG_APPEARANCE: Final = frozenset({"APP0", "APP2", "APP14"})
_GIF_APPEARANCE: Final = frozenset({b"NETSCAPE2.0", b"ANIMEXTS1.0"})


def has_metadata(image: Any) -> bool:
    """Check whether the file of a decoded picture may contain text."""
    harmless = {"extension"} if image.info.get("extension", (b"",))[0] in _GIF_APPEARANCE else set()
    segments = {name for name, _ in getattr(image, "applist", ())}
    return not (image.info.keys() <= _APPEARANCE | harmless and segments <= _JPEG_APPEARANCE)


def without_metadata(image: Any) -> Any:
    """Return a copy that looks the same and, once saved, contains no metadata except the orientation."""
    from PIL import Image as Pil

    orientation = None
    with suppress(Exception):  # EXIF data that does not decode has no orientation
        orientation = image.getexif().get(_ORIENTATION)
    image = image.copy()
    image.info = {name: value for name, value in image.info.items() if name in _APPEARANCE}
    if orientation is not None:
        exif = Pil.Exif()
        exif[_ORIENTATION] = orientation
        image.info["exif"] = exif.tobytes()
    return image
