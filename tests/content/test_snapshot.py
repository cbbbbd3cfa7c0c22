"""The copy taken on the training thread: equal, independent of what happens next, and never long."""

import itertools
import sys
from array import array
from collections import UserDict
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image
from values import BadItems, BadMapping, Evil, Point, Quits, cycle, deep, kept, same, vast, wide_cycle

from examples import thorough
from rollout_plugins import Placeholder
from rollout_plugins.content.exact_json import decode, encode
from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.snapshot import Snapshot


def copy(value):
    return Snapshot().copy(value)


@thorough
@given(kept)
def test_the_copy_is_equal_with_every_type(value):
    assert same(copy(value), value)


def test_later_changes_do_not_affect_the_copy():
    value = {"a": [{"b": [1]}], "t": ({"c": 1},)}
    made = copy(value)
    value["a"][0]["b"].append(2)
    value["t"][0]["c"] = 2
    value["new"] = 1
    assert made == {"a": [{"b": [1]}], "t": ({"c": 1},)}


WRITTEN = {
    "bytearray": (lambda: bytearray(b"abc"), lambda value: value.reverse()),
    "packed ids": (lambda: array("q", [1, 2]), lambda value: value.append(3)),
    "number in an array": (lambda: np.array(1.0), lambda value: value.fill(2)),
    "frame": (lambda: np.zeros((2, 2), np.uint8), lambda value: value.fill(2)),
    "number in a tensor": (lambda: torch.tensor(1.0, requires_grad=True), lambda value: value.data.fill_(2)),
    "ids": (lambda: torch.tensor([1, 2]), lambda value: value.zero_()),
    "canvas": (lambda: Image.new("RGB", (2, 2)), lambda value: value.paste((9, 9, 9), (0, 0, 1, 1))),
    "mapping": (lambda: UserDict(a=[1]), lambda value: value["a"].append(2)),
    "view of a mapping": (lambda: MappingProxyType({"a": [1]}), lambda value: value["a"].append(2)),
    "named tuple": (lambda: Point([1], 2.0), lambda value: value.x.append(2)),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_later_writes_of_the_owner_do_not_affect_the_copy(kind):
    make, write = WRITTEN[kind]
    value = make()
    made, again = copy([value, value])
    write(value)
    assert content_hash(made) == content_hash(again) == content_hash(make()) != content_hash(value)


def test_leaves_are_shared_and_subclasses_of_containers_are_copied_as_plain_ones():
    class Mine(list):
        pass

    leaf = Evil()
    made = copy([leaf, Mine([1]), BadItems(a=1)])
    assert made[0] is leaf
    assert type(made[1]) is list


@pytest.mark.parametrize("make", [Evil, Quits, BadMapping, object, lambda: BadItems(a=[1])])
def test_an_object_that_raises_when_inspected_is_shared(make):
    value = make()
    assert copy([value])[0] is value or type(value) is BadItems


@contextmanager
def at_most(calls):
    """Fail when more functions are called than this; a clock would count what else the machine does."""
    left = itertools.count(calls, -1)

    def count(frame, event, _):
        if event == "call":
            assert next(left)

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("make", [cycle, wide_cycle, vast, deep, lambda: (vast(), [cycle()])])
def test_an_endless_value_is_truncated_quickly_and_stored(make, monkeypatch):
    monkeypatch.setattr("rollout_plugins.content.snapshot.COPIED_ITEMS", 100_000)
    value = {"x": make(), "y": [1]}
    with at_most(1_000_000):
        made = copy(value)
    assert made["y"] == [1]
    lost = []
    assert decode(encode(made, lost))["y"] == [1]
    assert lost
    assert {one.why for one in lost} <= {"nested too deep", "repeated in a value with too many items"}
    assert all(one.where.startswith(".x") for one in lost)


def test_a_large_finite_value_is_copied_completely(monkeypatch):
    monkeypatch.setattr("rollout_plugins.content.snapshot.COPIED_ITEMS", 1000)
    value = [[{"a": [number]}, (number,)] for number in range(1000)]
    snapshot = Snapshot()
    assert same(snapshot.copy(value), value)
    assert snapshot.bytes < 1_000_000


def test_a_trainer_with_a_deep_stack_gets_a_copy_or_a_placeholder():
    def at(depth):
        return at(depth - 1) if depth else copy(deep(190))

    made = at(sys.getrecursionlimit() - 250)
    assert isinstance(made, Placeholder) or same(made, deep(190))


def test_the_size_approximates_that_of_the_copied_values():
    class Picture:
        size = (100, 10)

    snapshot = Snapshot()
    snapshot.copy({"text": "x" * 1000, "list": [0] * 1000, "bytes": b"x" * 1000, "picture": Picture()})
    assert 14_000 < snapshot.bytes < 16_000
