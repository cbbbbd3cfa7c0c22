"""Text where a number belongs: the sinks get what the store keeps, and with redact no secret leaves in it."""

from dataclasses import fields, replace

import pytest
from store_rig import record, rollouts

from rollout_plugins import Rollout, Tokens, ToolCall, hookimpl

KEY = "sk-" + "a1B2" * 8
#: What `on_rollout` may not return, or a host decides.
FIXED = {"id", "run_id", "step", "generation", "rank", "index", "group", "group_size"}
NUMBERS = ("reward", "advantage", "policy_step", "prompt_tokens", "completion_tokens", "time", "attempt")
CALL_NUMBERS = ("turn", "position", "reply", "seconds")


def with_text(rollout: Rollout, text: str) -> Rollout:
    """Return the rollout with text in each field of a number."""
    calls = [ToolCall(name="f", arguments={}, **{name: text}) for name in CALL_NUMBERS]
    values = {**dict.fromkeys(NUMBERS, text), "rewards": {"half": 0.5, "judge": text}, "tool_calls": tuple(calls)}
    return replace(rollout, **values)


class Judge:
    """Stores the text of its error where the score belongs."""

    name = "judge"

    @hookimpl
    def on_rollout(self, rollout):
        return with_text(rollout, f"401 for key {KEY}") if rollout.index else None


class LateJudge:
    name = "late-judge"

    @hookimpl
    def select_rollouts(self, rollouts):
        return [with_text(rollout, f"401 for key {KEY}") if rollout.index else rollout for rollout in rollouts]


class Keeps:
    """Keeps the traces that it is sent."""

    def __init__(self):
        self.traces = []

    @hookimpl
    def export_traces(self, traces):
        self.traces += traces


def marked(values):
    """The marks of what was lost, as sinks have them or as the store does."""
    return {name.removeprefix("marks/"): mark for name, mark in values.items() if "lost:" in name}


LOST = {
    **{f"lost:{name}": "[str: not a number]" for name in ("reward", "advantage", "time", "rewards.judge")},
    **{f"lost:{name}": "[str: not a 64-bit integer]" for name in NUMBERS if "_" in name or name == "attempt"},
    **{
        f"lost:tool_calls[{place}].{name}": "[str: not a 32-bit integer]"
        for place, name in enumerate(CALL_NUMBERS[:3])
    },
    "lost:tool_calls[3].seconds": "[str: not a number]",
}


@pytest.mark.parametrize("is_from_plugin", [True, False])
def test_sinks_get_numbers_or_nothing_where_the_store_keeps_numbers(tmp_path, is_from_plugin):
    sink = Keeps()
    given = rollouts(3, attempt=1, policy_step=4, time=1.5)
    if not is_from_plugin:
        given = [with_text(rollout, "failed") if rollout.index else rollout for rollout in given]
    run = record(tmp_path, given, plugins=(Judge(), sink) if is_from_plugin else (sink,))
    stored = list(run.rollouts())
    assert len(sink.traces) == len(stored) == 3
    lost = {name: mark for name, mark in LOST.items() if is_from_plugin or name != "lost:attempt"}
    for rollout, trace in zip(stored[1:], sink.traces[1:], strict=True):
        facts = trace.metadata
        assert marked(rollout.marks) == marked(facts) == lost
        assert (facts["reward"], facts["reward/half"], facts["reward/judge"]) == (None, 0.5, None)
        assert (rollout.reward, rollout.rewards) == (None, {"half": 0.5, "judge": None})
        for name in ("advantage", "policy_step", "prompt_tokens", "completion_tokens"):
            assert facts[name] == getattr(rollout, name) is None
        assert [span["id"] for span in trace.spans] == ["call_0_0"] * 4
        assert [span["duration_ms"] for span in trace.spans] == [None] * 4
    assert marked(stored[0].marks) == marked(sink.traces[0].metadata) == {}
    assert stored[0].policy_step == 4
    assert run.health.drops == {"unserialisable_field": 2 * len(lost)}


def test_numbers_of_other_classes_are_numbers(tmp_path):
    import numpy as np
    import torch

    class Scores:
        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, reward=torch.tensor(0.25), advantage=np.float32(0.5), prompt_tokens=np.int64(3))

    sink = Keeps()
    run = record(tmp_path, rollouts(1), plugins=(Scores(), sink))
    (rollout,) = run.rollouts()
    assert (rollout.reward, rollout.advantage, rollout.prompt_tokens) == (0.25, 0.5, 3)
    assert marked(rollout.marks) == run.health.drops == {}
    assert [sink.traces[0].metadata[name] for name in ("reward", "advantage", "prompt_tokens")] == [0.25, 0.5, 3]


@pytest.mark.parametrize("late", [False, True])
def test_what_a_late_plugin_puts_where_a_number_belongs_does_not_reach_the_sinks(tmp_path, late):
    sink = Keeps()
    run = record(tmp_path, rollouts(2), plugins=(LateJudge() if late else Judge(), sink))
    assert KEY not in repr(sink.traces) + repr(list(run.rollouts()))


@pytest.mark.needs(part="redact")
@pytest.mark.parametrize("name", [f.name for f in fields(Rollout) if f.name not in FIXED])
def test_redact_searches_every_field_that_a_plugin_can_set(name):
    from rollout_plugins.plugins.redact import Redact

    text = f"401 for key {KEY}"
    values = {
        "tokens": Tokens(prompt=[1, text], completion=text),
        "tool_calls": (ToolCall(name="f", arguments={}, **dict.fromkeys(CALL_NUMBERS, text)),),
        **dict.fromkeys(("prompt", "completion", "images"), (text,)),
        **{field: {"x": text} for field in ("rewards", "columns", "extra", "marks")},
    }
    rollout = Rollout(id="r", **{name: values.get(name, text)})
    assert "a1B2" not in repr(getattr(Redact().on_rollout(rollout), name))
