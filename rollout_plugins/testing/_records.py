"""Create records with plausible values in all fields, so that a test states only the values it is about."""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from typing import Any

from rollout_hookspecs import Rollout, Run, Step

from rollout_plugins.content.tool_calls import read_tool_calls

_numbers = count(1)

_CALL = {"type": "function", "function": {"name": "multiply", "arguments": {"a": 6, "b": 7}}}
_PROMPT = ({"role": "user", "content": "What is 6 times 7?"},)
_COMPLETION = (
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "name": "multiply", "content": "42"},
    {"role": "assistant", "content": "It is 42."},
)


def make_rollout(**fields: Any) -> Rollout:
    """Return a rollout with a question, a tool call, its result and an answer. Any field of `Rollout` can be given.

    `prompt` and `completion` may be text instead of messages. Fields that depend on a given field are derived from it:
    tool calls from the completion, the rewards from the reward, and the reward from the rewards.

        make_rollout(completion="I do not know.", reward=0.0, finish="length")
    """
    _text_to_messages(fields, "prompt", "user")
    _text_to_messages(fields, "completion", "assistant")
    completion = fields.get("completion", deepcopy(_COMPLETION))
    defaults: dict[str, Any] = {
        "id": f"rollout-{next(_numbers)}",
        "run_id": "test-run",
        "step": 1,
        "policy_step": 0,
        "time": 1.7e9,
        "prompt": deepcopy(_PROMPT),
        "completion": completion,
        "tool_calls": read_tool_calls(completion),
        **_rewards(fields),
        "advantage": 0.5,
        "prompt_tokens": 12,
        "completion_tokens": 20,
        "finish": "stop",
        "columns": {"answer": 42},
    }
    return Rollout(**{**defaults, **fields})


def _text_to_messages(fields: dict[str, Any], name: str, role: str) -> None:
    value = fields.get(name)
    if isinstance(value, str):
        fields[name] = ({"role": role, "content": value},)
        fields.setdefault(f"{name}_is_text", True)
    elif isinstance(value, list):
        fields[name] = tuple(value)


def _rewards(fields: dict[str, Any]) -> dict[str, Any]:
    if "reward" in fields:
        return {"rewards": {"correct": fields["reward"]}}
    rewards = fields.get("rewards", {"correct": 1.0})
    numbers = [value for value in rewards.values() if value is not None]
    return {"rewards": rewards, "reward": sum(numbers) if numbers else None}


def make_step(**fields: Any) -> Step:
    """Return a step, by default the first training step of one process."""
    return Step(**{"step": 1, **fields})


def make_run(**fields: Any) -> Run:
    """Return a run of a GRPO trainer with one reward function and one tool."""
    function = {"name": "multiply", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}
    defaults: dict[str, Any] = {
        "id": "test-run",
        "trainer": "GRPOTrainer",
        "host": "grpo",
        "model": "tiny",
        "reward_names": ("correct",),
        "reward_weights": (1.0,),
        "num_generations": 2,
        "tools": ({"type": "function", "function": function},),
    }
    return Run(**{**defaults, **fields})
