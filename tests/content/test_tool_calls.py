"""Every door says the same of the same tool calls: a real trainer, the recorder, imports, traces and viewers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console
from rig import GRPO, call, make
from rollout_hookspecs import Rollout

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, open_run
from rollout_plugins.content.trace import default_trace
from rollout_plugins.shapes.importing import import_rollouts
from rollout_plugins.show.render import render_rollout

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
MESSAGES = [messages for messages, _ in CASES.values()]


def read(rollout):
    return [(one.name, one.result, one.reply, one.status) for one in rollout.tool_calls]


class Saying(GRPO):
    """A trainer whose completions are the messages of the cases, one after the other."""

    def _generate(self, *args, **kwargs):
        made = super()._generate(*args, **kwargs)
        return tuple(json.loads(json.dumps(MESSAGES)) if self._is_said(part) else part for part in made)

    def _is_said(self, part):
        return isinstance(part, list) and all(
            isinstance(one, list) and one and isinstance(one[0], dict) for one in part
        )


@pytest.fixture(scope="module")
def by_door(tmp_path_factory):
    """The rollouts of all cases, by the door they came in through."""
    folder = tmp_path_factory.mktemp("doors")
    trainer = make(folder, cls=Saying, callbacks=[RolloutPluginCallback()], per_device_train_batch_size=len(CASES))
    trainer.train()
    with RolloutRecorder(dir=folder / "recorded") as recorder:
        recorder.record(1, [{"prompt": QUESTION, "completion": messages} for messages in MESSAGES])
    lines = folder / "lines.jsonl"
    lines.write_text("".join(json.dumps({"messages": [*QUESTION, *messages]}) + "\n" for messages in MESSAGES))
    runs = {
        "GRPO": open_run(folder / "out"),
        "recorder": open_run(folder / "recorded"),
        "import": open_run(import_rollouts("openai-jsonl", lines, folder / "imported").dir),
    }
    return {door: dict(zip(CASES, run.rollouts(), strict=True)) for door, run in runs.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("door", ["GRPO", "recorder", "import"])
def test_each_door_finds_the_same_answers_and_outcomes(by_door, door, case):
    rollout = by_door[door][case]
    assert list(rollout.completion) == CASES[case][0]
    assert read(rollout) == CASES[case][1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_trace_links_the_same_answers(by_door, case, recorded):
    """Also of a rollout whose calls nobody recorded: then the messages are all there is."""
    rollout = by_door["recorder"][case]
    trace = default_trace(rollout if recorded else replace(rollout, tool_calls=()))
    said = trace.messages[len(rollout.prompt) :]
    ids = {one["id"]: one["function"]["name"] for message in said for one in message.get("tool_calls", ())}
    linked = [(ids[message["tool_call_id"]], message["content"]) for message in said if "tool_call_id" in message]
    assert sorted(linked) == sorted((name, result) for name, result, reply, _ in CASES[case][1] if reply is not None)
    if recorded:
        assert [(span["name"], span["output"], span["status"]) for span in trace.spans] == [
            (name, result, status) for name, result, _, status in CASES[case][1]
        ]


@pytest.mark.parametrize("case", CASES)
def test_viewers_show_each_answer_with_its_call_by_whatever_door_it_came(by_door, case):
    rollout = by_door["recorder"][case]
    shown, at = body(rollout), 0
    for name, result, _, _ in CASES[case][1]:
        at = shown.index(f'{name}(of="{name}")', at)
        at = shown.index(result or "", at)
    assert {body(other[case]) for other in by_door.values()} == {body(default_trace(rollout))} == {shown}


def body(source):
    """What a terminal shows of the completion."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(render_rollout(source, max_lines=None))
    return captured.get()[captured.get().index("assistant") :]


def boom() -> str:
    """
    Answers with what looks like an error.
    """
    return "Error: boom"


def test_a_watched_call_that_answers_with_an_error_did_run(tmp_path):
    """Only who watched knows that; whoever has nothing but the messages takes the answer's word for it."""
    trainer = make(tmp_path, [call("boom", {})] * 4 + ["done"] * 4, tools=[boom], callbacks=[RolloutPluginCallback()])
    trainer.train()
    rollout = next(open_run(tmp_path / "out").rollouts())
    (watched,) = rollout.tool_calls
    assert (watched.status, watched.error, watched.result, watched.reply) == ("ok", None, "Error: boom", 1)
    (span,) = default_trace(rollout).spans
    assert (span["status"], span["error"], span["output"]) == ("ok", None, "Error: boom")
    with RolloutRecorder(dir=tmp_path / "again") as recorder:
        recorder.record(1, [{"prompt": QUESTION, "completion": rollout.completion}])
    (unwatched,) = next(open_run(tmp_path / "again").rollouts()).tool_calls
    assert (unwatched.status, unwatched.error, unwatched.reply) == ("error", "Error: boom", 1)


def test_parallel_watched_calls_of_one_tool_without_ids_are_answered_in_order(tmp_path):
    both = call("echo", {"text": "one"}) + "\n" + call("echo", {"text": "two"})
    trainer = make(tmp_path, [both] * 4 + ["done"] * 4, tools=[echo], callbacks=[RolloutPluginCallback()])
    trainer.train()
    for rollout in open_run(tmp_path / "out").rollouts():
        assert read(rollout) == [("echo", "one", 1, "ok"), ("echo", "two", 2, "ok")]
        assert read(unrecorded(rollout, tmp_path)) == read(rollout)


def echo(text: str) -> str:
    """
    Say it again.

    Args:
        text: what to say
    """
    return text


def unrecorded(rollout: Rollout, folder):
    """The same messages through an import, which has nothing but them."""
    lines = folder / f"{rollout.index}.jsonl"
    lines.write_text(json.dumps({"messages": [*rollout.prompt, *rollout.completion]}) + "\n")
    return next(open_run(import_rollouts("openai-jsonl", lines, folder / str(rollout.index)).dir).rollouts())
