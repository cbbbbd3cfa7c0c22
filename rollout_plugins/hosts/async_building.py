"""Rollouts out of what an asynchronous trainer received; all of it on the worker thread."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from rollout_hookspecs import Rollout, Tokens

from rollout_plugins.hosts.async_samples import Conversation, Row
from rollout_plugins.hosts.building import as_messages, end_ids, finish_of, given
from rollout_plugins.hosts.facts import describe_trl, reward_names, tool_schemas
from rollout_plugins.hosts.toolcalls import tool_calls

_PREFIX = "rewards/"
_SETTINGS = (
    "max_staleness", "token_budget", "weight_sync_steps", "max_inflight_tasks", "queue_maxsize",
    "fork_threshold_tokens", "teacher_top_k",
)  # fmt: skip


class Builder:
    """Turns conversations into rollouts."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        self._rank = int(trainer.accelerator.process_index)
        self._group_size = max(int(getattr(trainer.args, "num_generations", 1) or 1), 1)
        self._ends = end_ids(trainer)
        self._tools = _tool_names(trainer)
        self._keeps_tokens = bool(options.get("tokens"))
        self._tokenizer = options.get("rendered")

    @property
    def needs_ids(self) -> bool:
        return self._keeps_tokens or bool(self._tokenizer)

    def rollouts(self, conversations: Sequence[Conversation]) -> list[Rollout]:
        return [self._rollout(index, conversation) for index, conversation in enumerate(conversations)]

    def _rollout(self, index: int, seen: Conversation) -> Rollout:
        prompt, prompt_is_text = as_messages(seen.prompt, "user")
        completion, completion_is_text = as_messages(seen.completion, "assistant")
        calls = tool_calls(completion, None, self._tools)
        scores, more = _scores(seen.metrics)
        first, last = seen.rows[0], seen.rows[-1]
        return Rollout(
            id="",
            rank=self._rank,
            policy_step=seen.policy_step,
            index=index,
            group=seen.group if isinstance(seen.group, int) else index,
            group_size=self._group_size,
            time=seen.time,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=calls,
            rewards={name.removeprefix(_PREFIX): score for name, score in scores.items() if name != "reward"},
            reward=scores.get("reward"),
            advantage=seen.advantage,
            prompt_tokens=first.prompt_length,
            completion_tokens=sum(row.written for row in seen.rows),
            finish=finish_of(last.last, self._ends, calls),
            extra={**more, **seen.facts, **self._forks(seen)},
            rendered=self._rendered(first),
            tokens=_tokens(first) if self._keeps_tokens else None,
            marks=_marks(seen),
        )

    def _forks(self, seen: Conversation) -> dict[str, Any]:
        """Tokens of the rows after the first."""
        if len(seen.rows) == 1 or not self._keeps_tokens:
            return {}
        return {"forks": [asdict(_tokens(row)) for row in seen.rows[1:]]}

    def _rendered(self, row: Row) -> str | None:
        if not self._tokenizer:
            return None
        return str(self._tokenizer.decode(row.ids[: row.prompt_length].tolist(), skip_special_tokens=False))


def _scores(metrics: Mapping[Any, Any]) -> tuple[dict[str, float | None], dict[Any, Any]]:
    """Rewards as numbers, and whatever else was measured."""
    scores: dict[str, float | None] = {}
    more: dict[Any, Any] = {}
    for name, value in metrics.items():
        if name == "reward" or (isinstance(name, str) and name.startswith(_PREFIX)):
            try:
                scores[name] = given(float(value))
                continue
            except (TypeError, ValueError, OverflowError):
                pass
        more[name] = value
    return scores, more


def _marks(seen: Conversation) -> dict[str, str]:
    forks = {"forks": f"{len(seen.rows)} rows, since its tokens came out another way"} if len(seen.rows) > 1 else {}
    return {"trained": seen.fate, **forks}


def _tokens(row: Row) -> Tokens:
    start = row.prompt_length
    return Tokens(
        prompt=row.ids[:start].tolist(),
        completion=row.ids[start:].tolist(),
        mask=row.mask[start:].tolist(),
        logprobs=row.logprobs[start:].tolist() if row.logprobs is not None else None,
    )


def _worker_options(trainer: Any) -> Mapping[str, Any]:
    """What the trainer's own worker was made with; a worker from elsewhere keeps that to itself."""
    found = getattr(getattr(trainer, "rollout_worker", None), "_loop_kwargs", None)
    return found if isinstance(found, Mapping) else {}


def _tool_names(trainer: Any) -> list[str]:
    """Names of all tools there are; none when environments bring more of them, inside the worker."""
    options = _worker_options(trainer)
    if options.get("environment_factory") is not None:
        return []
    return [getattr(tool, "__name__", "") for tool in options.get("tools") or ()]


def describe_async(trainer: Any) -> Mapping[str, Any]:
    """Facts of the run. Rewards and tools are the worker's, not the trainer's."""
    options = _worker_options(trainer)
    theirs = SimpleNamespace(
        reward_funcs=[_unwrapped(function) for function in options.get("reward_funcs") or ()],
        tools=options.get("tools") or (),
    )
    facts = dict(describe_trl(trainer))
    settings = {name: value for name in _SETTINGS if (value := getattr(trainer.args, name, None)) is not None}
    return {
        **facts,
        "reward_names": reward_names(theirs),
        "reward_weights": (1.0,) * len(theirs.reward_funcs),
        "num_generations": getattr(trainer.args, "num_generations", None),
        "tools": tuple(tool_schemas(theirs)),
        "settings": {**facts["settings"], **settings},
    }


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
