"""JSON text that loses nothing: what goes in comes out, and what cannot is marked where it was."""

import json
import math
import time
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import (
    HOSTILE,
    NASTY,
    PLAIN,
    Evil,
    HashableDict,
    cycle,
    deep,
    hostile,
    json_values,
    kept,
    real,
    same,
    vast,
    wide_cycle,
)

from examples import thorough
from rollout_plugins import Image, Placeholder
from rollout_plugins.content.exact_json import decode, encode, from_tagged, to_tagged


def back(value):
    return decode(encode(value))


@thorough
@given(kept)
def test_every_value_comes_back_equal_with_its_types(value):
    lost = []
    assert same(decode(encode(value, lost)), value)
    assert lost == []


@pytest.mark.parametrize("value", NASTY, ids=lambda value: ascii(value)[:20])
def test_difficult_values_round_trip_alone_and_in_containers(value):
    for one in (value, [value], (value,), {"k": value}, {value: value}, {"k": [(value, {"$str": value})]}):
        assert same(back(one), one)


@thorough
@given(json_values)
def test_the_slow_encoder_writes_the_same_as_the_fast_one(value):
    careful = to_tagged(value)
    assert same(from_tagged(careful), value)
    assert same(orjson.loads(orjson.dumps(careful)), orjson.loads(encode(value)))


@thorough
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text("abc"), c),
        max_leaves=8,
    )
)
def test_ordinary_values_are_ordinary_json(value):
    assert same(json.loads(encode(value)), value)


@pytest.mark.parametrize("text", ["$5", "$\\frac{1}{2}$", '{"$str": "x"}', '"$lost":', '\\"$int":'])
def test_text_that_looks_like_a_tag_stays_text(text):
    assert json.loads(encode({"a": text})) == {"a": text}
    assert back({"a": text, text: [text]}) == {"a": text, text: [text]}


@pytest.mark.parametrize("key", ["$str", "$int", "$float", "$bytes", "$tuple", "$dict", "$image", "$lost", "$decimal"])
def test_a_dict_of_the_user_is_never_mistaken_for_a_tag(key):
    for value in ({key: "AA=="}, {key: []}, {"x": {key: None}}, {key: 1, "b": 2}):
        assert same(back(value), value)


def test_a_json_schema_with_refs_stays_readable():
    schema = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}
    assert json.loads(encode(schema)) == schema


@pytest.mark.parametrize(("value", "plain"), PLAIN, ids=[type(value).__name__ for value, _ in PLAIN])
def test_a_subclass_or_numpy_scalar_comes_back_as_a_plain_value(value, plain):
    found = back(value)
    assert type(found) is type(plain)
    assert found == plain or (isinstance(plain, Decimal) and found.is_nan())
    assert math.copysign(1, found) == math.copysign(1, plain) if isinstance(plain, float) else True


def test_a_tensor_of_one_number_is_that_number_and_a_larger_one_is_a_placeholder():
    torch = pytest.importorskip("torch")
    assert same(back(torch.tensor(0.5)), 0.5)
    assert same(back(torch.tensor(3, dtype=torch.int8)), 3)
    assert same(back(torch.tensor(True, requires_grad=False)), True)
    found = back([torch.zeros(2, 3), torch.zeros((), device="meta")])
    assert [one.type for one in found] == ["torch.Tensor", "torch.Tensor"]
    assert found[0].preview == "torch.float32[2, 3]"


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_value_alone_becomes_a_placeholder_with_type_path_and_reason(name):
    lost = []
    text = encode({"before": [1, {}], "x": ["a", HOSTILE[name]()], "after": 1.0}, lost)
    found = decode(text)
    assert same(found["before"], [1, {}])
    assert same(found["after"], 1.0)
    assert found["x"][0] == "a"
    marks = list(_placeholders(found))
    assert marks
    assert len(marks) == len(lost)
    for mark in marks:
        assert mark.type
        assert mark.where.startswith(".x[1]")
        assert mark.why


def _placeholders(value):
    """Every placeholder in a value, however deep."""
    unread = [value]
    while unread:
        one = unread.pop()
        if isinstance(one, Placeholder):
            yield one
        elif isinstance(one, dict):
            unread += one.values()
        elif isinstance(one, (list, tuple)):
            unread += one


@thorough
@given(
    st.recursive(
        kept | hostile, lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(), c, max_size=3), max_leaves=6
    )
)
def test_encoding_never_raises_and_is_stable(value):
    found = back(real(value))
    assert same(back(found), found)


def test_a_cycle_is_cut_where_it_closes():
    assert back(cycle()) == {
        "a": [1, Placeholder(type="dict", where=".a[1]", why="contains itself", preview="1 items")]
    }


def test_the_same_list_twice_is_not_a_cycle():
    shared = [1.0]
    assert same(back({"a": shared, "b": (shared, shared)}), {"a": [1.0], "b": ([1.0], [1.0])})


@pytest.mark.parametrize("make", [wide_cycle, vast, lambda: vast(30)], ids=["wide cycle", "2**60", "2**30"])
def test_endless_values_take_seconds_at_most(make, monkeypatch):
    monkeypatch.setattr("rollout_plugins.content.exact_json.STORED_ITEMS", 100_000)
    started = time.process_time()
    text = encode({"x": make(), "y": 1})
    assert time.process_time() - started < 5
    assert len(text) < 500_000
    assert decode(text)["y"] == 1


def test_a_large_finite_value_is_stored_completely(monkeypatch):
    monkeypatch.setattr("rollout_plugins.content.exact_json.STORED_ITEMS", 1000)
    value = [[{"a": [number]}, (number,)] for number in range(1000)]
    assert same(back(value), value)


def test_deep_nesting_is_stored():
    assert same(back(deep(190)), deep(190))
    assert same(back({"t": deep(150), "nan": (1,)}), {"t": deep(150), "nan": (1,)})
    cut = next(_placeholders(back([deep(5000), (1,)])))
    assert cut.why == "nested too deep"


def test_keys_that_cannot_be_stored_do_not_overwrite_each_other():
    class Same:
        def __repr__(self):
            return "same"

    found = back({Same(): 1, Same(): 2, "x": 3})
    assert sorted(found.values()) == [1, 2, 3]
    assert sum(isinstance(key, Placeholder) for key in found) == 2


def test_a_key_that_is_hashable_only_by_its_class_becomes_a_placeholder():
    found = back({HashableDict(a=1): "v"})
    assert list(found.values()) == ["v"]
    assert isinstance(next(iter(found)), Placeholder)


def test_an_image_record_with_odd_fields_comes_back():
    image = Image(hash="\ud800", width=10**30, note=None)
    assert back([image]) == [image]
    assert isinstance(back(Image(hash=Evil())).hash, Placeholder)
    assert back(Image(hash=None)) == Image(hash=None)


@pytest.mark.parametrize("text", ['{"$int": "x"}', '{"$image": {"later": 1}}', '{"$dict": 5}', '[{"$str": null}]'])
def test_unknown_tags_are_read_literally(text):
    assert decode(text) == json.loads(text)


def test_a_placeholder_is_stored_and_counted_with_its_path():
    lost = []
    given_one = Placeholder(type="list", where="", why="nested too deep", preview="3 items")
    assert decode(encode({"a": given_one}, lost)) == {
        "a": Placeholder(type="list", where=".a", why="nested too deep", preview="3 items")
    }
    assert len(lost) == 1
