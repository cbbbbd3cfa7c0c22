"""What tests of exports share: the least that a sink can be, and what arrived."""

import json
from dataclasses import replace

from rollout_plugins import Image, Rollout, ToolCall, hookimpl


def rollout(split, generation, index):
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": index}}}
    made = Rollout(
        id=f"r1.1.{split[0]}{generation}.0.{index}", run_id="r1", split=split, step=generation + 1, generation=generation,
        index=index, group=index // 2, group_size=2, prompt=({"role": "user", "content": "hi"},),
        completion=({"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": "f", "content": "6"}),
        tool_calls=(ToolCall(name="f", arguments={"a": index}, reply=1, result="6"),), rewards={"half": index / 2}, reward=index / 2,
    )  # fmt: skip
    return replace(made, images=(Image(hash="x", note="gone"),)) if index == 3 else made


def lines(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def ids(run):
    return sorted(rollout.id for rollout in run.rollouts())


def in_file(folder):
    return sorted(line["id"] for line in lines(folder))


class Least:
    """The least that a sink can be."""

    def __init__(self):
        self.ids = []
        self.traces = []

    @hookimpl
    def export_traces(self, traces):
        self.ids += [trace.rollout_id for trace in traces]
        self.traces += traces
