"""A few rollouts by hand, with everything in them that a sink must show, and values that no sink can take."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image as Pictures
from rollout_hookspecs import Image, Placeholder, Rollout, Run, ToolCall

SHAPE = Image(hash="shape", path="media/shape.png", width=64, height=48)
SQUARE = Image(hash="square", path="media/square.webp")
REMOTE = Image(hash="remote", uri="https://x.test/a.png", note="remote, not fetched")


def run_in(folder: Path, **changes) -> Run:
    media = folder / "media"
    media.mkdir(parents=True, exist_ok=True)
    Pictures.new("RGB", (64, 48), "#336699").save(media / "shape.png")
    Pictures.new("RGBA", (32, 32), (200, 30, 60, 128)).save(media / "square.webp")
    facts = {"id": "run-1", "model": "tiny", "trainer": "GRPOTrainer", "reward_names": ("correct", "format")}
    return Run(dir=str(folder), **{**facts, **changes})


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tools(**changes) -> Rollout:
    """Two calls whose results came back in the other order."""
    base = {"id": "r-tools", "run_id": "run-1", "step": 3, "policy_step": 2, "generation": 2, "group_size": 2}
    facts = {
        **base,
        "reward": 1.0,
        "advantage": 0.7,
        "rewards": {"correct": 1.0, "format": None},
        "finish": "stop",
        "prompt_tokens": 12,
        "completion_tokens": 40,
        "columns": {"answer": "6", "meta": {"source": ["gsm8k", 3]}},
        "extra": {"judge": 0.5},
        "marks": {"cap": "best of its group"},
        "time": 1_790_000_000.0,
        "prompt": ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2*3? Weather?"}),
        "completion": (
            {
                "role": "assistant",
                "reasoning_content": "Two tools.",
                "content": "",
                "tool_calls": [call("multiply", {"a": 2, "b": 3}), call("weather", {"city": "Zürich"})],
            },
            {"role": "tool", "name": "weather", "content": "rain"},
            {"role": "tool", "name": "multiply", "content": "6"},
            {"role": "assistant", "content": "6, and rain."},
        ),
        "tool_calls": (
            ToolCall(name="multiply", arguments={"a": 2, "b": 3}, reply=2, result="6", seconds=0.003),
            ToolCall(name="weather", arguments={"city": "Zürich"}, position=1, reply=1, result="rain", seconds=0.4125),
        ),
    }
    return Rollout(**{**facts, **changes})


def failing(**changes) -> Rollout:
    """A tool that raised, one that does not exist, one that was never run."""
    return tools(
        **{
            "id": "r-failing",
            "index": 1,
            "reward": -1.0,
            "finish": "tool_limit",
            "rewards": {"correct": 0.0, "format": float("nan")},
            "completion": (
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "tool_calls": [call("broken", {"x": [1, None]}), call("nosuch", "{not json")],
                },
                {"role": "tool", "name": "broken", "content": "{'error': 'backend down'}"},
                {"role": "tool", "name": "nosuch", "content": "{'error': 'no such tool'}"},
                {"role": "assistant", "content": None, "tool_calls": [call("multiply", {})]},
            ),
            "tool_calls": (
                ToolCall(
                    name="broken", arguments={"x": [1, None]}, reply=1, result="{'error': 'backend down'}",
                    error="backend down", status="error", seconds=1.5,
                ),
                ToolCall(
                    name="nosuch", arguments="{not json", position=1, reply=2, result="{'error': 'no such tool'}",
                    error="no such tool", status="unknown",
                ),
                ToolCall(name="multiply", arguments={}, turn=3, error="cut by the tool limit", status="not_run"),
            ),
            **changes,
        }
    )  # fmt: skip


def pictured(**changes) -> Rollout:
    """Images in the prompt and in a tool's result."""
    result = [{"type": "image", "image": SQUARE}, {"type": "text", "text": "cropped"}]
    return tools(
        **{
            "id": "r-pictured",
            "index": 2,
            "group": 1,
            "reward": 0.5,
            "prompt": (
                {"role": "user", "content": [{"type": "image", "image": SHAPE}, {"type": "text", "text": "What?"}]},
            ),
            "completion": (
                {"role": "assistant", "content": "", "tool_calls": [call("crop", {"box": [0, 0, 9, 9]})]},
                {"role": "tool", "name": "crop", "content": result},
                {"role": "assistant", "content": [{"type": "text", "text": "A field."}]},
            ),
            "tool_calls": (ToolCall(name="crop", arguments={"box": [0, 0, 9, 9]}, reply=1, result=result),),
            "images": (SHAPE, SQUARE),
            **changes,
        }
    )


def rejected(**changes) -> Rollout:
    """Nothing came of it: no completion, no reward, an error."""
    return tools(
        **{
            "id": "r-rejected",
            "index": 3,
            "group": 1,
            "reward": None,
            "advantage": None,
            "rewards": {"correct": None, "format": None},
            "finish": "error",
            "error": "environment crashed",
            "prompt": (
                {"role": "user", "content": [{"type": "image", "image": REMOTE}, {"type": "text", "text": "And?"}]},
            ),
            "completion": (),
            "tool_calls": (),
            "images": (REMOTE,),
            **changes,
        }
    )


def batch() -> list[Rollout]:
    return [tools(), failing(), pictured(), rejected()]


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __str__(self):
        raise RuntimeError("no str")

    def __bool__(self):
        raise RuntimeError("no bool")

    def __eq__(self, other):
        raise RuntimeError("no eq")

    __hash__ = object.__hash__


class Trap(dict):
    def items(self):
        raise RuntimeError("no items")


def cycle():
    value: list = [1]
    value.append({"again": value})
    return value


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None), max_size=20),
    st.binary(max_size=5),
    st.sampled_from(
        [
            10**400, -(2**63) - 1, "\ud800 alone", "a\x00b\x1b[31m", np.float32(1.5), np.int64(7), np.array([1, 2]),
            np.float64("nan"), Decimal("1.10"), Path("a/b"), {1, 2}, b"\xff", 1 + 2j, object,
            Placeholder(type="X", where=".a", why="gone"),
        ]
    ),
    st.builds(Hostile),
    st.builds(Trap, st.just({"a": 1})),
    st.builds(cycle),
)  # fmt: skip
KEYS = st.one_of(st.text(max_size=5), st.integers(), st.none(), st.sampled_from(["role", "content", "\udfff", (1, 2)]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.tuples(inner, inner),
        st.fixed_dictionaries({"role": inner, "content": inner, "tool_calls": inner}),
        st.fixed_dictionaries({"function": inner, "id": inner}),
        st.fixed_dictionaries({"type": st.just("image"), "image": st.sampled_from([SHAPE, SQUARE, REMOTE])}),
    ),
    max_leaves=8,
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "other"]), "content": VALUES},
        optional={"tool_calls": VALUES, "name": VALUES, "reasoning_content": VALUES, "tool_call_id": VALUES},
    ),
    VALUES,
)
NAMES = st.text(max_size=6)
HOSTILE = st.builds(
    Rollout,
    id=st.text(st.characters(codec=None), min_size=1, max_size=8),
    prompt=st.lists(MESSAGES, max_size=2).map(tuple),
    completion=st.lists(MESSAGES, max_size=3).map(tuple),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            name=VALUES,
            arguments=VALUES,
            result=VALUES,
            reply=st.none() | st.integers(0, 2),
            status=st.sampled_from(["ok", "error", "unknown", "not_run"]),
            error=st.none() | st.text(st.characters(codec=None), max_size=9),
            seconds=st.none() | st.floats(),
        ),
        max_size=2,
    ).map(tuple),
    rewards=st.dictionaries(NAMES, st.none() | st.floats(), max_size=2),
    reward=st.none() | st.floats(),
    advantage=st.none() | st.floats(),
    columns=st.dictionaries(NAMES, VALUES, max_size=2),
    extra=st.dictionaries(NAMES, VALUES, max_size=2),
    error=st.none() | st.text(st.characters(codec=None), max_size=9),
    time=st.floats(),
)
