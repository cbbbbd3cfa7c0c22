"""What a picture's file says beside the picture: EXIF and XMP data, comments. Secrets may be in it, and places."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

LEFT_OUT: Final = "what its file said beside the picture was left out"
_ORIENTATION: Final = 0x0112
#: What is no more than how the picture looks; whatever is not known may be words.
_LOOKS: Final = frozenset({
    "adobe", "adobe_transform", "aspect", "background", "bbox", "blend", "chromaticity", "compression",
    "default_image", "disposal", "dpi", "duration", "gamma", "icc_profile", "interlace", "jfif", "jfif_density",
    "jfif_unit", "jfif_version", "loop", "progression", "progressive", "srgb", "timestamp", "transparency", "version",
})  # fmt: skip
_JPEG_LOOKS: Final = frozenset({"APP0", "APP2", "APP14"})
_GIF_LOOKS: Final = frozenset({b"NETSCAPE2.0", b"ANIMEXTS1.0"})


def has_words(image: Any) -> bool:
    """Whether there may be any in the file of a decoded picture."""
    known = {"extension"} if image.info.get("extension", (b"",))[0] in _GIF_LOOKS else set()
    segments = {name for name, _ in getattr(image, "applist", ())}
    return not (image.info.keys() <= _LOOKS | known and segments <= _JPEG_LOOKS)


def without_words(image: Any) -> Any:
    """A copy that looks the same and, saved, says no more than which way is up."""
    from PIL import Image as Pil

    orientation = None
    with suppress(Exception):  # EXIF data that does not decode says nothing
        orientation = image.getexif().get(_ORIENTATION)
    image = image.copy()
    image.info = {name: value for name, value in image.info.items() if name in _LOOKS}
    if orientation is not None:
        exif = Pil.Exif()
        exif[_ORIENTATION] = orientation
        image.info["exif"] = exif.tobytes()
    return image
