"""Images in messages, and the plugin that takes them out."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from hostile import encoded, picture
from PIL import Image as Pil
from rollout_hookspecs import Rollout, Run

from rollout_plugins.plugins.images import Images


def started(folder, *args, **options):
    plugin = Images(*args, **options)
    plugin.on_run_start(Run(id="run", dir=str(folder)))
    return plugin


def through(plugin, **fields):
    before = Rollout(id="r", **fields)
    return plugin.on_rollout(before) or before


def files(folder):
    return sorted(path.name for path in (Path(folder) / "media").glob("*"))


PNG = encoded(5)
MODES = [
    "1",
    "L",
    "LA",
    "P",
    "RGB",
    "RGBA",
    "I;16",
    "I",
    "F",
    "CMYK",
    "LAB",
    "YCbCr",
    "I;16B",
    "RGBX",
    "HSV",
    "La",
    "RGBa",
    "PA",
]


def noise(seed, side=96):
    return Pil.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), "uint8"))


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation, kind="JPEG"):
    exif = Pil.Exif()
    exif[0x0112] = orientation
    return saved(picture(5), kind, exif=exif.tobytes())
