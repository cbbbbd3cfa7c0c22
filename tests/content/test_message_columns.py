"""Conversations, tool calls and rollouts as columns are what they were as objects."""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_rig import collected

from rollout_plugins import Rollout, ToolCall
from rollout_plugins.content.call_columns import CallColumns, CallReader
from rollout_plugins.content.exact_json import encode
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.messages import as_messages
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.content.tool_calls import read_tool_calls
from rollout_plugins.testing import hostile_rollouts

NAMES = st.sampled_from(["search", "run", "no such tool"])
IDENTS = st.sampled_from([None, "a", "b"])
TEXTS = st.sampled_from(["", "fine", "Error: no", '{"error": "x"}', "\ud800"])
ATOMS = st.one_of(TEXTS, st.none(), st.integers(), st.booleans(), st.floats())
ARGUMENTS = st.one_of(TEXTS, st.dictionaries(st.sampled_from("xy"), st.one_of(ATOMS, st.lists(ATOMS))), ATOMS)


@st.composite
def calls(draw):
    function = {"name": draw(NAMES), "arguments": draw(ARGUMENTS)}
    ident = draw(IDENTS)
    whole = {**({} if ident is None else {"id": ident}), "type": "function", "function": function}
    return draw(st.sampled_from([whole, whole, whole, whole, function, "odd", {**whole, "more": 1}]))


@st.composite
def messages(draw):
    role = draw(st.sampled_from(["assistant", "assistant", "tool", "tool", "user"]))
    content = draw(st.one_of(TEXTS, TEXTS, TEXTS, st.none(), st.just([{"type": "text", "text": "t"}])))
    message = {"role": role, "content": content}
    if role == "assistant" and draw(st.booleans()):
        message["tool_calls"] = draw(st.one_of(st.lists(calls(), max_size=3), st.none()))
    if role == "tool":
        message |= {key: value for key, value in (("name", draw(NAMES)), ("tool_call_id", draw(IDENTS))) if value}
    for key in draw(st.sets(st.sampled_from(["reasoning_content", "thinking", "stray", 3]), max_size=1)):
        message[key] = draw(TEXTS)
    return draw(st.sampled_from([message, message, message, message, message, message, "odd", None]))


CONVERSATIONS = st.lists(st.one_of(st.lists(messages(), max_size=6), TEXTS, st.none()), max_size=4)


@settings(deadline=None)
@given(CONVERSATIONS)
def test_messages_round_trip_through_columns(given_):
    talk = MessageColumns(given_, "user", Snapshot().copy)
    assert encode(list(talk)) == encode([as_messages(one, "user")[0] for one in given_])
    assert talk.is_text == [isinstance(one, str) for one in given_]
    for index, one in enumerate(given_):
        keys = [list(message) if isinstance(message, dict) else None for message in as_messages(one, "user")[0]]
        assert [list(message) if isinstance(message, dict) else None for message in talk[index]] == keys


@settings(deadline=None)
@given(CONVERSATIONS)
def test_outcomes_from_columns_equal_those_read_from_each_conversation(given_):
    talk = MessageColumns(given_, "assistant")
    known = ["search", "run"]
    found = CallReader(talk, tool_names=[known] * len(talk)).read()
    assert encode(repr(list(found))) == encode(repr([read_tool_calls(one, tool_names=known) for one in talk]))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(content="new"),
        lambda m: m["tool_calls"].clear(),
        lambda m: m["tool_calls"][0]["function"].update(name="new"),
        lambda m: m["tool_calls"][0]["function"]["arguments"].update(x="new"),
        lambda m: m["tool_calls"][0]["function"]["arguments"]["deep"].append(1),
    ],
)
@pytest.mark.parametrize("beside", [[], [{"role": "user", "content": [{"type": "text", "text": "t"}]}]])
def test_later_changes_do_not_affect_the_columns(change, beside):
    def said():
        function = {"name": "search", "arguments": {"x": 1, "deep": [0]}}
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        return [call, *beside]

    conversation = said()
    talk = MessageColumns([conversation], "assistant", Snapshot().copy)
    change(conversation[0])
    conversation.append({"role": "user", "content": "late"})
    assert list(talk[0]) == said()


def walked(value):
    """All that the garbage collector walks because of this value."""
    found, new = {}, [value]
    while new:
        found |= {id(one): one for one in new}
        inside = [one for one in gc.get_referents(*new) if gc.is_tracked(one) and not isinstance(one, type)]
        new = [one for one in inside if id(one) not in found]
    return found


def test_plain_conversations_add_no_objects_for_the_garbage_collector():
    conversations = [
        [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": "yes"}] for n in range(500)
    ]
    talk = MessageColumns(conversations, "assistant", Snapshot().copy)
    collected(lambda: len(walked(talk)) < 50)
    assert len(talk) == 500


def test_rollouts_round_trip_through_columns():
    made = hostile_rollouts()
    found = RolloutColumns.from_rollouts(made).take(range(len(made)))
    assert [repr(one) for one in found] == [repr(one) for one in made]
    assert found[1] is found[1]
    assert RolloutColumns(2, {"reward": [1.0, None]})["rewards"] == [{}, {}]
    assert RolloutColumns(1, {"reward": [1.0]})[0] == Rollout(id="", reward=1.0)


def test_calls_round_trip_through_columns():
    some = [
        (ToolCall(turn=0, position=0, name="a", arguments={}),),
        (),
        (ToolCall(turn=2, position=1, name=None, arguments=1, status="ok"),),
    ]
    assert list(CallColumns(some)) == some
    assert list(CallColumns(some).take([2, 0])) == [some[2], some[0]]
    assert CallColumns(some).values_of(2, "status") == ["ok"]


def test_only_rollouts_with_more_than_text_are_searched_for_images():
    texts = [{"role": "user", "content": "see"}]
    block = [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]
    call = {"type": "function", "function": {"name": "show", "arguments": {"image": b""}}}
    asks = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    talks = {
        "prompt": MessageColumns([texts, block, texts, texts], "user"),
        "completion": MessageColumns([texts, texts, asks, texts], "x"),
    }
    columns = [{"answer": 1}, {}, {}, {"images": ["a.png"]}]
    drafts = RolloutColumns(4, {**talks, "columns": columns, "tool_calls": CallReader(talks["completion"]).read()})
    assert drafts.beyond_text() == [1, 2, 3]
