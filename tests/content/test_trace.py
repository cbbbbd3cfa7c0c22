import json
from dataclasses import replace

import pluggy
import pytest
from hypothesis import given
from rollout_hookspecs import PROJECT, Image, Placeholder, Rollout, ToolCall, Trace, hookimpl, hooks
from sink_rollouts import HOSTILE, SHAPE, VALUES, Hostile, Trap, batch, call, cycle, failing, pictured, rejected, tools

from examples import thorough
from rollout_plugins.content.json_safe import to_json_safe
from rollout_plugins.content.trace import DefaultTrace, default_trace
from rollout_plugins.sinks._traces import images_in


def jsonable(value) -> str:
    text = json.dumps(value, allow_nan=False, default=lambda v: str(v) if isinstance(v, Image) else 1 / 0)
    text.encode()
    return text


def completion(messages, tool_calls=()):
    return default_trace(Rollout(id="r", completion=tuple(messages), tool_calls=tuple(tool_calls))).messages


# --- pairing -------------------------------------------------------------------------------------------------------


def test_a_result_is_paired_with_its_call_whatever_the_order_of_results():
    trace = default_trace(tools())
    calls = {c["function"]["name"]: c["id"] for c in trace.messages[2]["tool_calls"]}
    answers = {m["name"]: m["tool_call_id"] for m in trace.messages if m["role"] == "tool"}
    assert calls == answers == {"multiply": "call_0_0", "weather": "call_0_1"}
    assert {span["name"]: (span["id"], span["output"]) for span in trace.spans} == {
        "multiply": ("call_0_0", "6"),
        "weather": ("call_0_1", "rain"),
    }


def test_two_calls_of_one_tool_are_paired_as_the_host_recorded_them():
    asks = {"role": "assistant", "content": None, "tool_calls": [call("f", {"x": 1}), call("f", {"x": 2})]}
    answers = [{"role": "tool", "name": "f", "content": "two"}, {"role": "tool", "name": "f", "content": "one"}]
    found = [
        ToolCall(name="f", arguments={}, position=0, reply=2),
        ToolCall(name="f", arguments={}, position=1, reply=1),
    ]
    messages = completion([asks, *answers], found)
    assert [m.get("tool_call_id") for m in messages] == [None, "call_0_1", "call_0_0"]


def test_results_are_paired_by_id_then_by_name_then_in_order():
    asks = {
        "role": "assistant",
        "tool_calls": [{"id": "a", **call("f", {})}, call("g", {}), call("h", {})],
    }
    answers = [
        {"role": "tool", "name": "g", "content": ""},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "content": ""},
        {"role": "tool", "content": "one too many"},
    ]
    assert [m.get("tool_call_id") for m in completion([asks, *answers])[1:]] == [
        "call_0_1",
        "call_0_0",
        "call_0_2",
        None,
    ]


def test_calls_in_the_prompt_have_separate_ids():
    history = ({"role": "assistant", "tool_calls": [call("f", {})]}, {"role": "tool", "name": "f", "content": "x"})
    trace = default_trace(replace(tools(), prompt=history))
    assert [m.get("tool_call_id") for m in trace.messages[:2]] == [None, "call_prompt_0_0"]
    ids = [c["id"] for m in trace.messages for c in m.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 3


def test_a_call_that_did_not_run_appears_without_a_result():
    trace = default_trace(failing())
    assert trace.messages[-1]["tool_calls"][0]["id"] == trace.spans[-1]["id"] == "call_3_0"
    assert trace.spans[-1]["status"] == "not_run"
    assert trace.spans[-1]["error"] == "cut by the tool limit"


@pytest.mark.parametrize(
    ("raw", "name", "arguments"),
    [
        ([None], "malformed call", "null"),
        (["f(x)"], "malformed call", "f(x)"),
        ("not a list", "malformed call", "not a list"),
        ({"function": {"name": "f", "arguments": {}}}, "f", "{}"),
        ([{"function": "f", "arguments": [1, 2]}], "f", "[1, 2]"),
        ([{"name": "f", "arguments": None}], "f", "null"),
        ([call("f", '{"x": ')], "f", '{"x": '),
        ([call(["f"], {"é": 1})], '["f"]', '{"é": 1}'),
    ],
)
def test_a_malformed_call_still_appears(raw, name, arguments):
    (message,) = completion([{"role": "assistant", "content": "", "tool_calls": raw}])
    (shown,) = message["tool_calls"]
    assert shown == {"id": "call_0_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_message_without_calls_gets_none():
    for message in ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x", "tool_calls": None}):
        assert completion([message]) == ({"role": "assistant", "content": "x"},)


# --- facts ---------------------------------------------------------------------------------------------------------


def test_metadata_has_every_searchable_field_and_is_flat():
    facts = default_trace(tools()).metadata
    assert facts == {
        "id": "r-tools",
        "run": "run-1",
        "attempt": 1,
        "split": "train",
        "step": 3,
        "policy_step": 2,
        "staleness": 0,
        "generation": 2,
        "group": 0,
        "group_size": 2,
        "place": 0,
        "index": 0,
        "rank": 0,
        "reward": 1.0,
        "advantage": 0.7,
        "reward/correct": 1.0,
        "reward/format": None,
        "prompt_tokens": 12,
        "completion_tokens": 40,
        "prompt_messages": 2,
        "tool_calls": 2,
        "tool_errors": 0,
        "finish": "stop",
        "status": "ok",
        "error": None,
        "time": "2026-09-21T14:13:20.000+00:00",
        "columns/answer": "6",
        "columns/meta": '{"source": ["gsm8k", 3]}',
        "extra/judge": 0.5,
        "marks/cap": "best of its group",
        "tags": "tool:multiply tool:weather result:ok",
    }


def test_a_tool_error_does_not_mark_the_rollout_as_failed():
    facts = default_trace(failing()).metadata
    assert (facts["status"], facts["tool_errors"]) == ("ok", 2)
    assert "result:unknown" in facts["tags"]


def test_a_failed_rollout_is_marked_and_a_missing_reward_is_not_zero():
    facts = default_trace(rejected()).metadata
    assert (facts["status"], facts["error"], facts["reward"]) == ("error", "environment crashed", None)
    assert "tags" not in facts
    assert default_trace(replace(tools(), finish="error")).metadata["status"] == "error"


def test_a_reward_that_is_not_a_number_differs_from_none():
    assert default_trace(failing()).metadata["reward/format"] == "NaN"


@pytest.mark.parametrize(
    ("changes", "staleness"),
    [({"step": 5, "policy_step": 4}, 0), ({"step": 9, "policy_step": 4}, 4), ({"policy_step": None}, None)],
)
def test_staleness_counts_updates_the_weights_were_behind(changes, staleness):
    assert default_trace(replace(tools(), **changes)).metadata["staleness"] == staleness
    assert default_trace(replace(tools(), **changes, split="eval")).metadata["staleness"] is None


def test_the_position_in_the_group_is_known_only_if_groups_are_contiguous():
    assert [default_trace(r).metadata["place"] for r in batch()] == [0, 1, 0, 1]
    assert default_trace(replace(tools(), index=7, group=0)).metadata["place"] is None


# --- values --------------------------------------------------------------------------------------------------------


def test_images_stay_records_in_messages_and_results_and_become_text_elsewhere():
    trace = default_trace(replace(pictured(), columns={"image": SHAPE}))
    assert [image.hash for image in images_in(trace.messages)] == ["shape", "square"]
    assert [image.hash for image in images_in(trace.spans)] == ["square"]
    assert trace.metadata["columns/image"] == "[IMAGE]"


def test_a_placeholder_becomes_text():
    kept = Placeholder(type="torch.Tensor", where=".x", why="not plain data")
    (message,) = completion([{"role": "user", "content": kept}])
    assert message["content"] == "[torch.Tensor: not plain data]"


@given(HOSTILE)
@thorough
def test_the_trace_of_any_rollout_is_plain_json(rollout):
    trace = default_trace(rollout)
    jsonable([trace.messages, trace.metadata, trace.spans, trace.rollout_id])
    assert len(trace.messages) == len(rollout.prompt) + len(rollout.completion)
    assert all(isinstance(value, (str, int, float, bool, type(None))) for value in trace.metadata.values())


@given(VALUES)
@thorough
def test_to_json_safe_never_raises_and_keeps_plain_json(value):
    first = to_json_safe(value)
    jsonable(first)
    assert to_json_safe(first) == first


def test_to_json_safe_keeps_values_that_json_can_represent():
    value = {"a": [1, 2.5, True, None, "é\n"], "b": {}, "c": [], "big": 2**63 - 1}
    assert to_json_safe(value) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**63, "9223372036854775808"),
        (float("-inf"), "-Infinity"),
        ("\ud83d", "\\ud83d"),
        (b"abc", "[bytes: 3 bytes]"),
        ({1: "a", "1": "b"}, {"1": "a", "1 (2)": "b"}),
        ((1, (2,)), [1, [2]]),
        (Hostile(), "[sink_rollouts.Hostile: no JSON for it]"),
        (Trap(a=1), "[sink_rollouts.Trap: unreadable, RuntimeError]"),
        (cycle(), [1, {"again": "[list: contains itself]"}]),
    ],
)
def test_to_json_safe_describes_values_that_json_cannot_represent(value, shown):
    assert to_json_safe(value) == shown


def test_to_json_safe_terminates_on_an_endless_value():
    value: list = []
    for _ in range(60):
        value = [value, value, value]
    assert len(jsonable(to_json_safe(value))) < 20_000_000
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deep" in jsonable(to_json_safe(deep))


# --- whoever formats -----------------------------------------------------------------------------------------------


def test_another_plugin_may_format_and_the_built_in_is_last():
    class Mine:
        @hookimpl
        def format_trace(self, rollout):
            return Trace(rollout_id=rollout.id, messages=()) if rollout.id == "mine" else None

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(Mine())
    manager.register(DefaultTrace())
    assert manager.hook.format_trace(rollout=replace(tools(), id="mine")).messages == ()
    assert manager.hook.format_trace(rollout=tools()) == default_trace(tools())
