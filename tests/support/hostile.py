"""Values a model, a tool or a dataset may hand over, as hypothesis strategies."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image as Pil
from rollout_hookspecs import Image, Placeholder, Rollout, ToolCall


class Evil:
    """Objects to being looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


def cycle() -> Any:
    value: Any = {"a": []}
    value["a"].append(value)
    return value


def deep(levels: int = 5000) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


def shared(levels: int = 10) -> Any:
    """2 ** levels values for whoever reads it twice."""
    value: Any = ["end"]
    for _ in range(levels):
        value = [value, value]
    return value


def encoded(color: int = 0, kind: str = "PNG", size: tuple[int, int] = (6, 4)) -> bytes:
    buffer = io.BytesIO()
    Pil.new("RGB", size, (color % 256, 7, 9)).save(buffer, kind)
    return buffer.getvalue()


def picture(color: int = 0, size: tuple[int, int] = (6, 4)) -> Pil.Image:
    return Pil.new("RGB", size, (color % 256, 7, 9))


odd = st.sampled_from(
    [
        float("nan"),
        float("-inf"),
        -0.0,
        10**400,
        "\ud800",
        "\x00",
        "data:image/png;base64,AAAA",
        b"\x89PNG\r\n\x1a\ncut",
        b"\xff\xfe",
        np.float32(1),
        np.zeros((2, 2)),
        np.array(["a"], dtype=object),
        torch.zeros(2),
        torch.zeros(1, dtype=torch.bfloat16, device="meta"),
        {1, 2},
        range(3),
        object(),
        int,
        Image(hash="x"),
        Placeholder(type="t", where="w", why="y"),
    ]
) | st.builds(lambda make: make(), st.sampled_from([Evil, cycle, deep, shared, picture, lambda: encoded()[:50]]))

keys = st.text(max_size=6) | st.sampled_from(
    ["image", "images", "type", "image_url", "arguments", "password", 1, None, (1, 2)]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20) | odd,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(lambda payload: {"type": "image", "image": payload}, inner)
        | st.builds(lambda payload: {"type": "image_url", "image_url": {"url": payload}}, inner)
        | st.builds(lambda content: {"role": "tool", "content": content}, inner)
    ),
    max_leaves=12,
)
numbers = st.none() | st.floats() | st.integers() | st.sampled_from([10**400])
columns = st.dictionaries(st.text(max_size=6) | st.sampled_from(["image", "images"]), values, max_size=3)


def rollouts(ident: str = "r") -> st.SearchStrategy[Rollout]:
    return st.builds(
        Rollout,
        id=st.just(ident),
        group=st.integers(0, 2),
        prompt=st.lists(values, max_size=3).map(tuple),
        completion=st.lists(values, max_size=3).map(tuple),
        tool_calls=st.lists(st.builds(ToolCall, name=values, arguments=values, result=values), max_size=2).map(tuple),
        rewards=st.dictionaries(st.sampled_from(["a", "b"]), numbers, max_size=2),
        reward=numbers,
        completion_tokens=st.none() | st.integers(0, 50),
        columns=columns,
        extra=columns,
        error=st.none() | st.text(max_size=8),
        finish=st.sampled_from(["stop", "length", "unknown"]),
    )


batches = st.integers(0, 6).flatmap(lambda n: st.tuples(*[rollouts(f"r{i}") for i in range(n)]))
