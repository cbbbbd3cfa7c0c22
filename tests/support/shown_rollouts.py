"""Rollouts to show: one of every kind of turn, and generated ones that hold anything at all."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from rollout_plugins import Rollout, ToolCall, Trace


def asks(*calls):
    return [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]


def rollout(**changes):
    base = Rollout(
        id="run-7",
        step=12,
        group=3,
        index=13,
        prompt=({"role": "system", "content": "Be careful."}, {"role": "user", "content": "What is 12 * 7?"}),
        completion=(
            {
                "role": "assistant",
                "reasoning_content": "I should multiply.",
                "content": "Let me see.",
                "tool_calls": asks(("multiply", {"a": 12, "b": 7}), ("divide", {"a": 1, "b": 0}), ("serch", {})),
            },
            {"role": "tool", "content": "84"},
            {"role": "tool", "content": "oops"},
            {"role": "tool", "content": "no"},
            {"role": "assistant", "content": "It is 84.", "tool_calls": asks(("multiply", '{"a": 3}'))},
        ),
        tool_calls=(
            ToolCall(name="multiply", arguments={"a": 12, "b": 7}, reply=1, result="84", seconds=0.012),
            ToolCall(
                name="divide",
                arguments={"a": 1, "b": 0},
                position=1,
                reply=2,
                result="oops",
                status="error",
                error="ZeroDivisionError: division by zero",
            ),
            ToolCall(name="serch", arguments={}, position=2, reply=3, result="no", status="unknown"),
            ToolCall(name="multiply", arguments='{"a": 3}', turn=4, status="not_run", error="length limit"),
        ),
        rewards={"correct": 1.0, "format": 0.75, "style": None},
        reward=1.75,
        advantage=1.2243,
        prompt_tokens=96,
        completion_tokens=1212,
        finish="length",
        columns={"answer": "84"},
    )
    return replace(base, **changes)


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __bool__ = __eq__ = __iter__ = __len__ = __repr__  # type: ignore[assignment]
    __hash__ = object.__hash__


class BrokenMapping(dict):
    def get(self, *_):
        raise RuntimeError("no get")

    items = keys = values = __iter__ = get


def cycle():
    value = [{"type": "text", "text": "round and round"}]
    value.append(value)
    return value


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.builds(lambda: 10**5000),
    st.floats(),
    st.binary(max_size=8),
    st.text(st.characters(codec=None), max_size=40),
    st.text("\x1b[]0m\r\n\t\u202e\u0301日a ", max_size=60),
    st.just("long " * 3000),
    st.builds(Broken),
    st.builds(BrokenMapping, st.just({"content": "x"})),
    st.builds(cycle),
    st.just(float("nan")),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
messages = st.one_of(
    anything,
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool", "日本語ロール", "", None]) | anything,
            "content": anything,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"function": st.fixed_dictionaries({"name": anything, "arguments": anything})},
                    optional={"id": st.sampled_from(["a", "b"]) | anything},
                ),
                max_size=4,
            )
            | anything,
            "tool_call_id": st.sampled_from(["a", "b"]) | anything,
            "reasoning_content": anything,
        },
    ),
)
places = st.integers(-2, 6) | anything
calls = st.builds(
    ToolCall,
    name=anything,
    arguments=anything,
    turn=places,
    position=places,
    reply=places,
    result=anything,
    error=anything,
    status=st.sampled_from(["ok", "error", "unknown", "not_run"]) | anything,
    seconds=st.floats() | anything,
)
rollouts = st.builds(
    Rollout,
    id=anything,
    split=anything,
    step=anything,
    group=anything,
    index=anything,
    prompt=st.lists(messages, max_size=3).map(tuple) | anything,
    completion=st.lists(messages, max_size=6).map(tuple) | anything,
    tool_calls=st.lists(calls | anything, max_size=4).map(tuple) | anything,
    rewards=st.dictionaries(st.text(max_size=8), anything, max_size=3) | anything,
    reward=anything,
    advantage=anything,
    prompt_tokens=anything,
    completion_tokens=anything,
    finish=anything,
    columns=st.dictionaries(st.text(max_size=8), anything, max_size=3) | anything,
    extra=anything,
    error=anything,
)
traces = st.builds(
    Trace,
    rollout_id=anything,
    messages=st.lists(messages, max_size=6).map(tuple) | anything,
    metadata=st.dictionaries(st.sampled_from(["reward", "reward/x", "columns/y", "step", "error"]), anything)
    | anything,
    spans=st.lists(st.fixed_dictionaries({"id": st.just("a"), "status": anything, "duration_ms": anything}))
    | anything,
)
sizes = {"width": st.integers(1, 130), "max_lines": st.integers(0, 40)}
