"""What every sink does with the traces it is sent."""

import json

from rollout_hookspecs import Step, Trace
from sink_rollouts import Hostile, tools

from rollout_plugins.content.trace import default_trace
from rollout_plugins.sinks._traces import prompt_and_completion, shape_each


def test_one_trace_that_cannot_be_shown_costs_only_itself():
    def shape(trace):
        if "boom" in trace.metadata:
            raise ValueError("boom")
        return trace.rollout_id, json.dumps([trace.messages, trace.metadata, trace.spans])

    odd = Trace(rollout_id="odd", messages=("text", {"role": Hostile(), "content": object()}), metadata={"x": {1: 2}})
    bad = Trace(rollout_id="bad", messages=(), metadata={"boom": 1})
    worse = Trace(rollout_id="worse", messages=5, metadata=None)
    result = shape_each([default_trace(tools()), odd, bad, worse, "no trace"], Step(step=9), shape)
    assert [ident for ident, _ in result] == ["r-tools", "odd", "bad", "worse", "unknown"]
    assert "could not be shown here (ValueError)" in result[2][1]


def test_a_sink_that_sees_one_of_several_ranks_says_so():
    def ranks(step):
        return [facts.get("ranks") for facts in shape_each([default_trace(tools())], step, lambda t: t.metadata)]

    assert ranks(Step(rank=2, world_size=4, gathered=False)) == ["only rank 2 of 4"]
    assert ranks(Step(rank=2, world_size=4, gathered=True)) == [None]
    assert ranks(Step(gathered=False)) == [None]


def test_a_trace_splits_into_prompt_and_completion():
    prompt, rest = prompt_and_completion(default_trace(tools()))
    assert [m["role"] for m in prompt] == ["system", "user"]
    assert rest[0]["reasoning_content"] == "Two tools."
    roles = ("user", "assistant", "user", "assistant")
    foreign = Trace(rollout_id="x", messages=tuple({"role": role} for role in roles))
    assert [len(part) for part in prompt_and_completion(foreign)] == [1, 3]
