"""Rollouts with values that models, tools and datasets have produced or might produce, which plugins must survive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from rollout_hookspecs import Image, Placeholder, Rollout, ToolCall

from rollout_plugins.testing._records import make_rollout

_TEXTS = {
    "empty-text": "",
    "terminal-codes": "\x1b[2J\x1b[31mred\x1b]0;title\x07 \x00\x08\r",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "markup": "[bold red]not markup[/] [/] :smile:",
    "right-to-left": "\u202etxt.exe\u202c \u2066\u200b",
    "lone-surrogate": "half of a pair: \ud800",
    "many-scripts": "Grüße 日本語 مرحبا 👩‍👩‍👧‍👦 e\u0301",
    "formula": '=HYPERLINK("http://example.com";"click")',
    "one-long-line": "x" * 200_000,
    "many-lines": "line\n" * 20_000,
    "looks-like-a-call": '<tool_call>\n{"name": "multiply", "arguments": {"a": 1',
    "percent-and-braces": "%s %(name)s {0} {name} ${name} {{ x }} {% raw %}",
}

_CONTENTS: dict[str, Any] = {
    "no-content": None,
    "number-content": 42,
    "dict-content": {"answer": 42},
    "empty-blocks": [],
    "strange-blocks": [None, "text", 3, {"type": "text"}, {"type": "hologram", "hologram": 1}, {"no": "type"}],
    "nested-blocks": [{"type": "tool_result", "content": [{"type": "text", "text": "deep"}]}],
    "image-record": [{"type": "image", "image": Image(hash="0" * 32)}, {"type": "text", "text": "look"}],
    "broken-image": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    "image-bytes": [{"type": "image", "image": b"\x89PNG\r\n\x1a\ncut"}],
}

_CALLS: dict[str, Any] = {
    "arguments-cut-off": {"name": "multiply", "arguments": '{"a": 6, "b":'},
    "arguments-missing": {"name": "multiply"},
    "arguments-are-a-list": {"name": "multiply", "arguments": [6, 7]},
    "arguments-hold-nan": {"name": "multiply", "arguments": {"a": float("nan"), "b": float("inf")}},
    "huge-number": {"name": "multiply", "arguments": {"a": 10**400}},
    "name-missing": {"arguments": {}},
    "name-is-no-text": {"name": ["multiply"], "arguments": {}},
    "name-is-a-path": {"name": "../../etc/passwd\x00", "arguments": {}},
    "call-is-no-dict": "multiply(6, 7)",
}


def hostile_rollouts() -> list[Rollout]:
    """Return rollouts that break code which trusts them. The id of each states what is wrong with it.

        @pytest.mark.parametrize("rollout", hostile_rollouts(), ids=lambda rollout: rollout.id)
        def test_survives_any_rollout(rollout):
            run_plugins([MyPlugin()], [rollout])

    They are equal each time but new objects, so that tests cannot affect each other.
    """
    return [
        *(make_rollout(id=name, completion=text) for name, text in _TEXTS.items()),
        *(make_rollout(id=name, completion=[_message(deepcopy(content))]) for name, content in _CONTENTS.items()),
        *(make_rollout(id=name, completion=[_calling(deepcopy(function))]) for name, function in _CALLS.items()),
        *_shapes(),
        *_numbers(),
        *_values(),
    ]


def _message(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _calling(function: Any) -> dict[str, Any]:
    return {**_message(None), "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def _shapes() -> Iterator[Rollout]:
    """Yield conversations of unexpected form."""
    yield make_rollout(id="nothing-said", prompt=(), completion=())
    yield make_rollout(id="messages-are-no-dicts", completion=(None, "text", 7, ["role", "user"]))
    yield make_rollout(id="message-without-role", completion=({"content": "who said it?"},))
    yield make_rollout(id="role-is-no-text", completion=({"role": 3, "content": "x"},))
    yield make_rollout(id="result-without-call", completion=({"role": "tool", "content": "42"},))
    yield make_rollout(id="calls-are-no-list", completion=({**_message("x"), "tool_calls": {"name": "multiply"}},))
    yield make_rollout(id="many-turns", completion=[_message(str(turn)) for turn in range(500)])
    yield make_rollout(id="bare-call", tool_calls=(ToolCall(name=None, arguments=None),))
    yield make_rollout(id="call-points-nowhere", tool_calls=(ToolCall(name="f", arguments={}, turn=99, reply=-5),))
    yield make_rollout(id="failed", completion=(), error="RuntimeError: out of memory", finish="error")


def _numbers() -> Iterator[Rollout]:
    """Yield scores that break arithmetic."""
    yield make_rollout(id="no-rewards", rewards={}, reward=None, advantage=None)
    yield make_rollout(id="reward-is-none", rewards={"correct": None, "brief": 0.0}, reward=None)
    yield make_rollout(id="reward-is-nan", reward=float("nan"), advantage=float("nan"))
    yield make_rollout(id="reward-is-infinite", reward=float("-inf"), advantage=float("inf"))
    yield make_rollout(id="reward-is-huge", reward=10**400)
    yield make_rollout(id="reward-has-a-strange-name", rewards={"a/b\n=c": 1.0, "": 2.0}, reward=3.0)
    yield make_rollout(id="nothing-counted", prompt_tokens=None, completion_tokens=None, policy_step=None)


def _values() -> Iterator[Rollout]:
    """Yield columns and extras that cannot be copied, compared, printed or stored."""
    odd: Mapping[str, Any] = {
        "object": object(),
        "class": int,
        "set": {1, 2},
        "bytes": b"\xff\x00",
        "range": range(3),
        "placeholder": Placeholder(type="t", where="w", why="y"),
        "hostile-object": _Hostile(),
    }
    for name, value in odd.items():
        yield make_rollout(id=f"column-holds-{name}", columns={"odd": value}, extra={"odd": value})
    yield make_rollout(id="column-holds-itself", columns={"odd": _cycle()})
    yield make_rollout(id="column-is-deep", columns={"odd": _deep()})
    yield make_rollout(id="column-names", columns={"": 1, "a/b": 2, "../up": 3, "é\x00": 4})
    yield make_rollout(id="mixed-keys", extra={"odd": {1: "one", None: "none", (1, 2): "tuple", "1": "text"}})


class _Hostile:
    """Raises when it is printed or compared."""

    def __repr__(self) -> str:
        raise RuntimeError("has no repr")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


def _cycle() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


def _deep(levels: int = 5_000) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value
