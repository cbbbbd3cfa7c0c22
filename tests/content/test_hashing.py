"""One hash for equal content, whatever it is."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hostile import Evil, cycle, deep, encoded, picture, shared, values
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pil
from rollout_hookspecs import Image

from examples import thorough
from rollout_plugins.content.hashing import content_hash, pixel_hash

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "different",
    [
        (1, 1.0, "1", True, b"1", None, [1], {"1": 1}, {1: 1}),
        (0, 0.0, False, "", b"", [], {}, None, "0", set()),
        ("a", ["a"], [["a"]], {"a": "a"}, {"a"}),
        ([1, 2], [2, 1], [12], ["1", "2"], ["12"], [[1], 2]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": {"b": 2}}, {"ab": 12}),
        (float("nan"), float("inf"), float("-inf"), "nan"),
        (np.zeros(2), np.zeros(3), np.zeros(2, "f4"), torch.zeros(2), [0.0, 0.0]),
        (10**400, 10**401, str(10**400)),
        ("\ud800", "\ud801", "?"),
        (picture(1), picture(2), picture(1, (4, 6)), picture(1).convert("L")),
    ],
)
def test_values_and_types_that_differ_have_different_hashes(different):
    hashes = [content_hash(value) for value in different]
    assert len(set(hashes)) == len(different)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({"a": {"x": 1, "y": 2}}, OrderedDict(a=MappingProxyType({"y": 2, "x": 1}))),
        ([1, (2, 3)], (1, [2, 3])),
        (float("nan"), -float("nan")),
        ({1, 2, 3}, {3, 2, 1}),
        (np.float64(1.5), 1.5),
        (np.int64(3), 3),
        (torch.ones(2), torch.ones(2, requires_grad=True)),
        (b"ab", bytearray(b"ab")),
        (object(), object()),
    ],
)
def test_equal_content_has_one_hash(left, right):
    assert content_hash(left) == content_hash(right)


@thorough
@given(json_values, json_values)
def test_json_hashes_are_equal_exactly_when_the_json_is(left, right):
    same = repr(_sorted(left)) == repr(_sorted(right))
    assert (content_hash(left) == content_hash(right)) == same


def _sorted(value):
    if isinstance(value, dict):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    return ["list", *map(_sorted, value)] if isinstance(value, list) else value


@thorough
@given(values)
def test_anything_has_a_hash_and_always_the_same(value):
    digest = content_hash(value)
    assert len(digest) == 32
    assert content_hash([value]) == content_hash((value,))


@pytest.mark.parametrize(
    "make", [Evil, cycle, deep, lambda: shared(60), lambda: [Evil()], lambda: {Ellipsis: cycle()}]
)
def test_hostile_values_neither_raise_nor_take_long(make):
    assert len(content_hash(make())) == 32


def test_a_change_in_a_shared_container_changes_the_hash():
    assert content_hash(shared(40)) != content_hash(shared(41))


def test_dataclasses_hash_by_their_fields_and_type():
    @dataclass
    class One:
        x: object

    @dataclass
    class Two:
        x: object

    assert content_hash(One([1])) == content_hash(One([1]))
    assert len({content_hash(value) for value in (One(1), One(2), Two(1))}) == 3


def test_hashes_are_the_same_in_another_process():
    value = {"b": [1, 2.5, None], "a": {"x", "y", "z"}}
    code = "from rollout_plugins.content.hashing import content_hash as h; print(h({'a': {'z', 'y', 'x'}, 'b': [1, 2.5, None]}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == content_hash(value)


def test_images_hash_by_pixels_whatever_object_has_them():
    png, bmp = Pil.open(io.BytesIO(encoded(3))), Pil.open(io.BytesIO(encoded(3, "BMP")))
    png.load()
    bmp.load()
    hashes = {content_hash(image) for image in (png, bmp, picture(3), picture(3).copy())}
    assert hashes == {content_hash(Image(hash=pixel_hash(picture(3))))}


def test_palette_images_hash_by_their_indices_and_colours():
    left = Pil.new("P", (2, 1))
    left.putpalette([9, 9, 9, 200, 0, 0])
    left.putdata([0, 1])
    unused = left.copy()
    unused.putpalette([9, 9, 9, 200, 0, 0, 1, 2, 3])
    renumbered = Pil.new("P", (2, 1))
    renumbered.putpalette([200, 0, 0, 9, 9, 9])
    renumbered.putdata([1, 0])
    assert pixel_hash(left) == pixel_hash(unused)
    assert pixel_hash(left) != pixel_hash(renumbered), "the numbers may be labels"


def test_hashing_does_not_decode_an_image():
    image = Pil.open(io.BytesIO(encoded(1)))
    content_hash(image)
    assert image.tile, "decoding on another thread could collide with the trainer's"


def test_hashing_imports_neither_pillow_nor_numpy():
    code = (
        "import sys; from rollout_plugins.content.hashing import content_hash; content_hash([1, {'a': object()}]); "
        "assert not {'PIL', 'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
