"""Every door says the same of the same tool calls: a real trainer, the recorder, traces and viewers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console
from rig import GRPO, call, make
from tool_cases import CASES, QUESTION, outcomes

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, open_run
from rollout_plugins.content.trace import default_trace
from rollout_plugins.show.render import render_rollout

MESSAGES = [messages for messages, _ in CASES.values()]


class Saying(GRPO):
    """A trainer whose completions are the messages of the cases, one after the other."""

    def _generate(self, *args, **kwargs):
        made = super()._generate(*args, **kwargs)
        return tuple(json.loads(json.dumps(MESSAGES)) if self._is_said(part) else part for part in made)

    def _is_said(self, part):
        rows = part if isinstance(part, list) and part else [None]
        return all(isinstance(row, list) and row and isinstance(row[0], dict) for row in rows)


@pytest.fixture(scope="module")
def by_door(tmp_path_factory):
    """The rollouts of all cases, by the door they came in through."""
    folder = tmp_path_factory.mktemp("doors")
    trainer = make(folder, cls=Saying, callbacks=[RolloutPluginCallback()], per_device_train_batch_size=len(CASES))
    trainer.train()
    with RolloutRecorder(dir=folder / "recorded") as recorder:
        recorder.record(1, [{"prompt": QUESTION, "completion": messages} for messages in MESSAGES])
    runs = {"GRPO": open_run(folder / "out"), "recorder": open_run(folder / "recorded")}
    return {door: dict(zip(CASES, run.rollouts(), strict=True)) for door, run in runs.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("door", ["GRPO", "recorder"])
def test_hosts_shapes_and_traces_pair_the_same_replies_and_outcomes(by_door, door, case):
    rollout = by_door[door][case]
    assert list(rollout.completion) == CASES[case][0]
    assert outcomes(rollout) == CASES[case][1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_trace_links_the_same_replies(by_door, case, recorded):
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
def test_viewers_show_each_reply_with_its_call(by_door, case):
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


def test_an_observed_call_that_returns_an_error_text_did_run(tmp_path):
    """Only who watched knows that; whoever has nothing but the messages takes the answer's word for it."""
    trainer = make(tmp_path, [call("boom", {})] * 4 + ["done"] * 4, tools=[boom], callbacks=[RolloutPluginCallback()])
    trainer.train()
    rollout = open_run(tmp_path / "out").rollouts()[0]
    (watched,) = rollout.tool_calls
    assert (watched.status, watched.error, watched.result, watched.reply) == ("ok", None, "Error: boom", 1)
    (span,) = default_trace(rollout).spans
    assert (span["status"], span["error"], span["output"]) == ("ok", None, "Error: boom")
    with RolloutRecorder(dir=tmp_path / "again") as recorder:
        recorder.record(1, [{"prompt": QUESTION, "completion": rollout.completion}])
    (unwatched,) = open_run(tmp_path / "again").rollouts()[0].tool_calls
    assert (unwatched.status, unwatched.error, unwatched.reply) == ("error", "Error: boom", 1)


def test_parallel_observed_calls_of_one_tool_without_ids_are_paired_in_order(tmp_path):
    both = call("echo", {"text": "one"}) + "\n" + call("echo", {"text": "two"})
    trainer = make(tmp_path, [both] * 4 + ["done"] * 4, tools=[echo], callbacks=[RolloutPluginCallback()])
    trainer.train()
    watched = list(open_run(tmp_path / "out").rollouts())
    with RolloutRecorder(dir=tmp_path / "again") as recorder:
        recorder.record(1, [{"prompt": QUESTION, "completion": rollout.completion} for rollout in watched])
    for rollout in (*watched, *open_run(tmp_path / "again").rollouts()):
        assert outcomes(rollout) == [("echo", "one", 1, "ok"), ("echo", "two", 2, "ok")]


def echo(text: str) -> str:
    """
    Say it again.

    Args:
        text: what to say
    """
    return text
