"""Messages with tool calls and what came of them, for every door that such messages come in through."""

from __future__ import annotations

QUESTION = [{"role": "user", "content": "Go."}]


def asks(*calls):
    """An assistant's message with calls, each a name or a name and an id."""
    made = []
    for one in calls:
        name, ident = one if isinstance(one, tuple) else (one, None)
        called = {"type": "function", "function": {"name": name, "arguments": {"of": name}}}
        made.append(called if ident is None else {"id": ident, **called})
    return {"role": "assistant", "content": "", "tool_calls": made}


def answer(content, ident=None, role="tool", **more):
    return {"role": role, "content": content, **({} if ident is None else {"tool_call_id": ident}), **more}


DONE = {"role": "assistant", "content": "done"}
CASES = {
    "ids out of order": (
        [asks(("f", "a"), ("g", "b")), answer("B", "b"), answer("A", "a"), DONE],
        [("f", "A", 2, "ok"), ("g", "B", 1, "ok")],
    ),
    "the role function": (
        [asks("f"), answer("A", role="function", name="f"), DONE],
        [("f", "A", 1, "ok")],
    ),
    "an error that only the answer tells of": (
        [asks(("f", "a")), answer("Error: boom", "a"), DONE],
        [("f", "Error: boom", 1, "error")],
    ),
    "the same id twice": (
        [asks(("f", "a"), ("g", "a")), answer("first", "a"), answer("second", "a"), DONE],
        [("f", "first", 1, "ok"), ("g", "second", 2, "ok")],
    ),
    "a call without an answer": (
        [asks(("f", "a"), ("g", "b")), answer("B", "b"), DONE],
        [("f", None, None, "not_run"), ("g", "B", 1, "ok")],
    ),
    "parallel calls without ids": (
        [asks("f", "f", "g"), answer("1"), answer("2"), answer("3"), DONE],
        [("f", "1", 1, "ok"), ("f", "2", 2, "ok"), ("g", "3", 3, "ok")],
    ),
    "ids that start again in each turn": (
        [asks(("f", "c0")), answer("A", "c0"), asks(("g", "c0")), answer("B", "c0"), DONE],
        [("f", "A", 1, "ok"), ("g", "B", 3, "ok")],
    ),
    "an answer after other messages": (
        [asks(("f", "a")), {"role": "user", "content": "Wait."}, answer("A", "a"), DONE],
        [("f", "A", 2, "ok")],
    ),
}


def outcomes(rollout):
    return [(one.name, one.result, one.reply, one.status) for one in rollout.tool_calls]
