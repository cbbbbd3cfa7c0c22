"""Thumbnails are what a screen shows of an image."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from image_rig import MODES, saved, started, through, turned
from PIL import Image as Pil


def ramp(mode):
    """Dark on the left, bright on the right, in a range that only this mode has."""
    values = np.linspace(1000, 60000, 64).astype("uint16").reshape(1, 64).repeat(8, 0)
    if mode == "F":
        return Pil.fromarray((values / 60000).astype("float32"))
    return (
        Pil.fromarray(values.astype("int32") * 1000)
        if mode == "I"
        else Pil.fromarray(values).convert("I").convert(mode)
    )


def shades(image):
    grey = np.array(image.convert("L")).astype(int)[grey_row(image)]
    return grey[2], grey[len(grey) // 2], grey[-3]


def grey_row(image):
    return image.size[1] // 2


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_thumbnails_of_numbers_beyond_eight_bits_show_a_picture(tmp_path, mode):
    from rollout_plugins.show.images import _load
    from rollout_plugins.sinks._common import thumbnail
    from rollout_plugins.web.pools import Pictures

    image = ramp(mode) if mode != "I;16B" else Pil.open(io.BytesIO(saved_big_endian()))
    record = through(started(tmp_path), columns={"image": image}).columns["image"]
    pages = Pictures(tmp_path)
    pages.add(record)
    ((facts,), _) = pages.all(lambda *_: None)
    small = through(started(tmp_path / "small", "thumbnail", max_side=32), columns={"image": image}).columns["image"]
    shown = [
        Pil.open(io.BytesIO(thumbnail(tmp_path / record.path, 32))),
        Pil.open(tmp_path / "small" / small.path),
        _load(tmp_path / record.path),
    ]
    if "webp" in facts["data"][:20]:
        shown.append(Pil.open(io.BytesIO(base64.b64decode(facts["data"].partition(",")[2]))))
    for one in shown:
        dark, middle, bright = shades(one)
        assert dark < 40
        assert 90 < middle < 165
        assert bright > 215


def saved_big_endian():
    values = np.linspace(1000, 60000, 64).astype(">u2").reshape(1, 64).repeat(8, 0)
    return saved(Pil.frombytes("I;16B", (64, 8), values.tobytes()), "TIFF")


@pytest.mark.parametrize("mode", MODES)
def test_an_image_of_any_mode_is_made_smaller(tmp_path, mode):
    record = through(started(tmp_path, max_side=4), columns={"images": [Pil.new(mode, (90, 50))]}).images[0]
    assert record.note.endswith("at most 4 pixels per side")
    assert max(Pil.open(tmp_path / record.path).size) == 4


@pytest.mark.parametrize("values", [[np.nan, 0.0, 1.0], [0.0, np.inf, 1.0], [3.0, 3.0, 3.0], [np.nan] * 3])
def test_a_picture_of_any_numbers_has_a_thumbnail(tmp_path, values):
    image = Pil.fromarray(np.array([values], "float32"))
    record = through(started(tmp_path, "thumbnail"), columns={"image": image}).columns["image"]
    shown = np.array(Pil.open(tmp_path / record.path).convert("L")).astype(int)
    if 1.0 in values:
        assert shown[0, 2] - shown[0, values.index(0.0)] > 150


def test_a_turned_picture_is_upright_wherever_it_is_shown(tmp_path):
    from rollout_plugins.show.images import _load
    from rollout_plugins.sinks._common import thumbnail

    record = through(started(tmp_path), columns={"images": [turned(6)]}).images[0]
    small = through(started(tmp_path / "small", "thumbnail"), columns={"images": [turned(6)]}).images[0]
    assert (record.width, record.height) == (6, 4)
    assert _load(tmp_path / record.path).size == (4, 6)
    assert Pil.open(io.BytesIO(thumbnail(tmp_path / record.path, 32))).size == (4, 6)
    assert Pil.open(tmp_path / "small" / small.path).size == (4, 6)
