"""The store on disk: whatever a rollout holds is written, read back equal, and open to everybody's tools."""

import json
import math
from collections import UserDict
from dataclasses import fields, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import differences, rollouts, run_in, through_a_file, written
from values import HOSTILE, Bad, Evil, cycle, deep, hostile, kept, keys, real, same, text, vast, wide_cycle

from examples import thorough
from rollout_plugins import Image, Placeholder, Rollout, Tokens, ToolCall
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.store.schema import SCHEMA
from rollout_plugins.store.write import RunWriter

floats = st.none() | st.floats()
roles = st.sampled_from(["system", "user", "assistant", "tool"])
usual_call = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": text, "arguments": kept})},
    optional={"id": text},
)
odd_call = kept | st.fixed_dictionaries({"type": kept, "function": kept}, optional={"id": kept, "x": kept})
tool_calls = st.lists(usual_call, max_size=3) | st.lists(usual_call | odd_call, max_size=3) | kept


def message_of(value):
    usual = st.fixed_dictionaries(
        {"role": roles, "content": text},
        optional={
            "name": text,
            "reasoning_content": text,
            "tool_calls": tool_calls,
            "extra": value,
            **dict.fromkeys(("tool_call_id", "refusal"), st.none() | text),
        },
    )
    loose = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("role", "content", "name", "reasoning_content", "tool_calls", "x"), value)
    )
    return usual | loose | value


def messages_of(value):
    return st.lists(message_of(value), max_size=3).map(tuple)


numbers = st.integers(0, 2**31 - 1)
calls = st.builds(
    ToolCall,
    name=kept,
    arguments=kept,
    result=kept,
    turn=numbers,
    position=numbers,
    reply=st.none() | numbers,
    error=st.none() | text,
    status=st.sampled_from(["ok", "error", "unknown", "not_run"]),
    seconds=floats,
)
images = st.builds(Image, hash=st.text("ab/.", min_size=1), path=st.none() | st.text("ab"), width=st.none() | numbers)
tokens = st.builds(
    Tokens,
    prompt=st.none() | st.lists(numbers, max_size=3),
    completion=st.none() | st.lists(numbers, max_size=3),
    mask=st.none() | st.lists(st.integers(0, 1), max_size=3),
    logprobs=st.none() | st.lists(floats, max_size=3),
)
whole = st.builds(
    Rollout,
    id=st.just(""),
    step=st.integers(0, 2**40),
    policy_step=st.none() | st.integers(0, 2**40),
    group=numbers,
    group_size=numbers,
    time=st.floats(0, 1e10),
    prompt=messages_of(kept),
    completion=messages_of(kept),
    prompt_is_text=st.booleans(),
    completion_is_text=st.booleans(),
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    rewards=st.dictionaries(text, floats, max_size=3) | st.fixed_dictionaries({"half": floats}),
    reward=floats,
    advantage=floats,
    prompt_tokens=st.none() | numbers,
    completion_tokens=st.none() | numbers,
    finish=st.sampled_from(["stop", "length", "tool_limit", "error", "unknown"]),
    images=st.lists(images, max_size=2).map(tuple),
    columns=st.dictionaries(keys, kept, max_size=3),
    extra=st.dictionaries(keys, kept, max_size=3),
    rendered=st.none() | text,
    tokens=st.none() | tokens,
    error=st.none() | text,
    marks=st.dictionaries(text, text, max_size=2),
)


@thorough
@given(made=st.lists(whole, min_size=1, max_size=3))
def test_a_rollout_is_read_back_equal_with_every_type(made):
    found, lost = through_a_file(made)
    assert lost == []
    for one, other in zip(made, found, strict=True):
        assert differences(one, other, ignore=("id", "run_id", "index")) == {}


@thorough
@given(
    prompt=messages_of(kept | hostile),
    extra=st.dictionaries(keys, kept | hostile, max_size=3),
    call=st.builds(
        ToolCall, name=kept | hostile, arguments=kept | hostile, result=kept | hostile, error=hostile | text
    ),
)
def test_hostile_values_cost_only_themselves(prompt, extra, call):
    plain, lost = rollouts(2), []
    odd = replace(
        plain[1],
        prompt=tuple(map(real, prompt)),
        extra=real(extra),
        tool_calls=(ToolCall(**{f.name: real(getattr(call, f.name)) for f in fields(ToolCall)}),),
    )
    found, lost = through_a_file([plain[0], odd, plain[0]])
    for one in (found[0], found[2]):
        assert differences(plain[0], one, ignore=("id", "run_id", "index")) == {}
    assert (
        differences(plain[1], found[1], ignore=("id", "run_id", "index", "prompt", "extra", "tool_calls", "marks"))
        == {}
    )
    assert len(found[1].prompt) == len(prompt)
    assert found[1].extra.keys() == extra.keys()
    for name, value in extra.items():
        assert same(found[1].extra[name], value) or _holds_bad(value)
    assert bool(lost) == _holds_bad((prompt, extra, *(getattr(call, f.name) for f in fields(ToolCall))))


@pytest.mark.parametrize("calls", [[], None, [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("more", [{}, {"refusal": None}, {"tool_call_id": "c1"}, {"refusal": "no", "audio": None}])
def test_messages_as_servers_send_them_come_back(calls, more):
    """A key that only messages out of the ordinary have, such as those with an empty list of calls."""
    message = {"role": "assistant", "content": "hi", **more, "tool_calls": calls}
    for others in ((), ({"role": "user", "content": "hello"},)):
        talk = MessageColumns([others, (message,)], "assistant")
        drafts = RolloutColumns(2, {"id": ["a", "b"], "prompt": talk, "completion": talk})
        found, lost = through_a_file(drafts)
        assert [(r.prompt, r.completion) for r in found] == [(others, others), ((message,), (message,))]
        assert lost == []


def _holds_bad(value):
    if isinstance(value, dict):
        return any(map(_holds_bad, value.values()))
    return any(map(_holds_bad, value)) if isinstance(value, (list, tuple)) else isinstance(value, Bad)


def _with(place, bad):
    """A rollout that holds the value at one place of its completion or columns."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": bad, "y": 1}}}
    message = {
        "content": {"role": "user", "content": [{"type": "text", "text": "hi"}, bad]},
        "role": {"role": bad, "content": "hi"},
        "tool_calls": {"role": "assistant", "content": "hi", "tool_calls": [bad]},
        "arguments": {"role": "assistant", "content": "hi", "tool_calls": [call]},
        "message": bad,
        "column": {"role": "user", "content": "hi"},
    }[place]
    columns = {"answer": bad} if place == "column" else {"answer": 4}
    return rollouts(1, completion=(message, {"role": "user", "content": "next"}), columns=columns)[0]


@pytest.mark.parametrize("place", ["content", "role", "tool_calls", "arguments", "message", "column"])
def test_a_hostile_value_is_marked_with_type_path_and_reason_where_it_stood(tmp_path, place):
    found, lost = written(tmp_path, [_with(place, HOSTILE[name]()) for name in sorted(HOSTILE)])
    assert len(lost) >= len(found)
    assert all(one.type and one.why for one in lost)
    assert all(one.where or place == "message" for one in lost)
    for one in found:
        assert one.completion[1] == {"role": "user", "content": "next"}
        if place == "arguments":
            assert one.completion[0]["tool_calls"][0]["function"]["arguments"]["y"] == 1
        if place == "content":
            assert one.completion[0]["content"][0] == {"type": "text", "text": "hi"}
        if place != "column":
            assert one.columns == {"answer": 4}


JUNK = [
    *(None, True, 5, -1, 10**400, 2.5, math.nan, "text", "\ud800", b"x", [1], (None,), {"a": 1}, {1: 2}),
    *(Evil(), object(), UserDict(), ToolCall(name=1, arguments=2, turn="x", reply=2**40, status=None, seconds="x")),
    *(Image(hash=None, width="x"), [Image(hash="a", width=2**40)], Tokens(prompt=["x"], mask=[1]), Tokens(prompt=5)),
]


@pytest.mark.parametrize(
    "field", [f.name for f in fields(Rollout) if f.name not in {"id", "index", "attempt", "split"}]
)
def test_nonsense_in_one_field_leaves_the_others_as_they_are(tmp_path, field):
    made = rollouts(1)[0]
    found, lost = written(tmp_path, [made, *(replace(made, **{field: value}) for value in JUNK)])
    ignore = ("id", "run_id", "index")
    assert differences(made, found[0], ignore) == {}
    for value, odd in zip(JUNK, found[1:], strict=True):
        assert differences(made, odd, (*ignore, field, "marks")) == {}
        marks = {key: mark for key, mark in odd.marks.items() if str(key).startswith(f"lost:{field}")}
        assert marks or _kept(field, value, getattr(odd, field))
        assert all(mark[0] == "[" and ": " in mark for mark in marks.values())
    assert len(lost) >= 3


def _kept(field, value, found):
    """Whether the field says what was put in: the value, its number, or its only message; or a placeholder for it."""
    if field in {"prompt", "completion"}:
        sole = found[0] if len(found) == 1 else found
        return (
            isinstance(sole, Placeholder)
            or any(same(one, value) for one in (sole, found, list(found)))
            or sole == value
        )
    return same(found, value) or (isinstance(found, (bool, int, float, dict, tuple)) and found == value)


def test_values_beyond_counting_do_not_hold_up_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.content.exact_json.STORED_ITEMS", 50_000)
    contents = [vast(), wide_cycle(), cycle(), deep()]
    found, lost = written(
        tmp_path, rollouts(1, completion=tuple({"role": "user", "content": one} for one in contents))
    )
    assert len(found[0].completion) == 4
    assert lost


def test_a_text_of_100_mb_comes_back(tmp_path):
    long = "aé\x00$" * 25_000_000
    found, lost = written(tmp_path, rollouts(1, completion=({"role": "assistant", "content": long},)))
    assert found[0].completion[0]["content"] == long
    assert lost == []


def test_long_texts_of_any_kind_come_back_side_by_side(tmp_path):
    contents = ["plain " * 200, None, "", "é" * 500, "文" * 500, "\U0001f600\x00$" * 300, "\ud83d half " * 300, "end"]
    said = tuple({"role": "assistant", "content": one} for one in contents)
    made = [*rollouts(1, completion=said), *rollouts(1, completion=said[:6]), *rollouts(1)]
    found, lost = written(tmp_path, made)
    assert [list(one.completion) for one in found] == [list(said), list(said[:6]), list(made[2].completion)]
    assert lost == []


DOCUMENTED = {
    *("id", "run_id", "split", "attempt", "step", "policy_step", "generation", "rank", "index", "group", "group_size"),
    *("time", "reward", "advantage", "prompt_tokens", "completion_tokens", "turns", "calls"),
    *("failed_calls", "finish", "error", "prompt_is_text", "completion_is_text", "rewards", "tool_calls", "prompt"),
    *("completion", "images", "columns", "extra", "marks", "rendered", "tokens", "rest"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A run as other people's tools find it: two Parquet files, with everything that trips up inference."""
    folder = tmp_path_factory.mktemp("files")
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    made = rollouts(
        3,
        completion=(
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": "a"}]},
            "no message",
        ),
        tool_calls=(
            ToolCall(name="f", arguments={}, result=[1, "a"]),
            ToolCall(name=None, arguments=1, status="unknown"),
        ),
        columns={"answer": 1, "empty": {}, "nothing": None},
    )
    for split in ("train", "eval"):
        writer = RunWriter(run_in(folder))
        writer.write(split, [replace(r, id=f"{split}{i}", split=split) for i, r in enumerate(made)])
        writer.close()
    return folder / "r1" / "data"


def test_pyarrow_opens_the_files(files):
    table = pq.read_table(files)
    assert set(table.column_names) == DOCUMENTED
    assert table.num_rows == 6
    assert table.schema.field("reward").type == pa.float64()
    assert table.schema.field("step").type == pa.int64()


def test_duckdb_opens_the_files_and_filters_them(files):
    import duckdb

    rows = duckdb.sql(f"select * from read_parquet('{files}/*/*.parquet')")
    assert set(rows.columns) == DOCUMENTED
    one = f"""select split, reward, rewards[1].value, calls, failed_calls, turns, tool_calls[1].arguments,
        completion[1].tool_calls[1].arguments, columns::json->>'answer', columns::json->'empty', prompt[1].content
        from read_parquet('{files}/*/*.parquet') where reward > 0.6 order by split"""
    expected = (1.0, 1.0, 2, 1, 1, "{}", "{}", "1", "{}", "hello")
    assert duckdb.sql(one).fetchall() == [("eval", *expected), ("train", *expected)]


def test_polars_opens_the_files(files):
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(f"{files}/train/*.parquet")
    assert set(frame.columns) == DOCUMENTED
    assert frame["completion"][0][0]["role"] == "assistant"
    assert frame.filter(polars.col("reward") > 0.2).height == 2


def test_pandas_opens_the_files(files):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(files / "eval")
    assert set(frame.columns) == DOCUMENTED
    assert frame["reward"].tolist() == [0.0, 0.5, 1.0]
    assert json.loads(frame["columns"][0]) == {"answer": 1, "empty": {}, "nothing": None}


def test_datasets_opens_the_files(files, tmp_path):
    datasets = pytest.importorskip("datasets")
    names = sorted(map(str, files.glob("*/*.parquet")))
    found = datasets.load_dataset("parquet", data_files=names, cache_dir=str(tmp_path))["train"]
    assert set(found.column_names) == DOCUMENTED
    assert len(found) == 6
    assert found[0]["tool_calls"][0]["arguments"] == "{}"


def test_an_empty_dict_is_an_empty_dict_and_one_is_one(tmp_path):
    arguments = {"e": {}, "l": [], "i": 1, "f": 1.0, "t": True, "n": None, "mix": [1, "a"], "z": -0.0, "b": 2**70}
    made = rollouts(
        1, tool_calls=(ToolCall(name="f", arguments=arguments, result=[1, 2, 3]), ToolCall(name="f", arguments={}))
    )
    found, _ = written(tmp_path, made)
    assert same(found[0].tool_calls[0].arguments, arguments)
    assert same(found[0].tool_calls[0].result, [1, 2, 3])
    assert same(found[0].tool_calls[1].arguments, {})


def test_the_schema_does_not_depend_on_what_is_written(tmp_path):
    for name, made in (("a", rollouts(1)), ("b", rollouts(1, completion=(1, None), columns={"x": [{}]}, reward=None))):
        written(tmp_path / name, made)
    one, other = (pq.read_schema(next((tmp_path / name).rglob("*.parquet"))) for name in "ab")
    assert one.equals(other, check_metadata=True)
    assert one == SCHEMA


def test_rewards_of_any_name_come_back_each_with_its_number(tmp_path):
    rewards = {"a": 0.0, "\ud800": math.nan, "\udfff\ud800": None, "?": 2.0, "$str": 3.0, "": 4.0, "a/b": -0.0}
    found, lost = written(tmp_path, rollouts(1, rewards=rewards), reward_names=tuple(rewards))
    assert same(dict(found[0].rewards), rewards)
    assert lost == []
