"""Rollouts out of what an asynchronous trainer received; all of it on the worker thread."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MethodType, SimpleNamespace
from typing import Any

from rollout_hookspecs import Rollout, Tokens, ToolCall

from rollout_plugins.content.foreign_values import conversation_fields
from rollout_plugins.hosts.kit.build_rollouts import reward_or_none
from rollout_plugins.hosts.kit.decoding import end_ids, finish_of
from rollout_plugins.hosts.kit.trainer_facts import describe_trl, reward_names, tool_schemas, unwrapped
from rollout_plugins.trainers.async_grpo.samples import Conversation, Row

_PREFIX = "rewards/"


class Builder:
    """Turns conversations into rollouts."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        self._rank = int(trainer.accelerator.process_index)
        self._group_size = max(int(getattr(trainer.args, "num_generations", 1) or 1), 1)
        self._ends = end_ids(trainer)
        self._keeps_tokens = bool(options.get("tokens"))
        self._tokenizer = options.get("rendered")

    @property
    def needs_ids(self) -> bool:
        return self._keeps_tokens or bool(self._tokenizer)

    def rollouts(self, conversations: Sequence[Conversation]) -> list[Rollout]:
        return [self._rollout(index, conversation) for index, conversation in enumerate(conversations)]

    def _rollout(self, index: int, seen: Conversation) -> Rollout:
        said = conversation_fields(seen.prompt, seen.completion)
        calls = said["tool_calls"] = tuple(map(_read, said["tool_calls"]))
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
            **said,
            rewards={name.removeprefix(_PREFIX): score for name, score in scores.items() if name != "reward"},
            reward=scores.get("reward"),
            advantage=seen.advantage,
            prompt_tokens=first.prompt_length,
            completion_tokens=sum(row.written for row in seen.rows),
            finish=finish_of(last.last, self._ends, calls),
            extra={**more, **seen.facts},
            rendered=self._rendered(first),
            tokens=_tokens(seen.rows) if self._keeps_tokens else None,
            marks=_marks(seen),
        )

    def _rendered(self, row: Row) -> str | None:
        if not self._tokenizer:
            return None
        return str(self._tokenizer.decode(row.ids[: row.prompt_length].tolist(), skip_special_tokens=False))


def _read(call: ToolCall) -> ToolCall:
    """The call as the worker reports it: it words the call of an unknown tool in its own way."""
    return replace(call, status="unknown") if call.error == f"unknown tool {call.name}" else call


def _scores(metrics: Mapping[Any, Any]) -> tuple[dict[str, float | None], dict[Any, Any]]:
    """Rewards as numbers, and whatever else was measured."""
    scores: dict[str, float | None] = {}
    more: dict[Any, Any] = {}
    for name, value in metrics.items():
        if name == "reward" or (isinstance(name, str) and name.startswith(_PREFIX)):
            try:
                scores[name] = reward_or_none(float(value))
                continue
            except (TypeError, ValueError, OverflowError):
                pass
        more[name] = value
    return scores, more


def _marks(seen: Conversation) -> dict[str, str]:
    forks = {"forks": f"came as {len(seen.rows)} rows, whose tokens differ"} if len(seen.rows) > 1 else {}
    return {"trained": seen.fate, **forks}


def _tokens(rows: Sequence[Row]) -> Tokens:
    """Of forks, what each adds; the conversation so far, in other tokens, stands before it and is not repeated."""
    return Tokens(
        prompt=rows[0].ids[: rows[0].prompt_length].tolist(),
        completion=_joined([row.ids[row.prompt_length :] for row in rows]),
        mask=_joined([row.mask[row.prompt_length :] for row in rows]),
        logprobs=None if rows[0].logprobs is None else _joined([row.logprobs[row.prompt_length :] for row in rows]),
    )


def _joined(arrays: Sequence[Any]) -> list[Any]:
    return list(chain.from_iterable(array.tolist() for array in arrays))


def _worker_options(trainer: Any) -> Mapping[str, Any]:
    """What the trainer's own worker was made with; a worker from elsewhere keeps that to itself."""
    found = getattr(getattr(trainer, "rollout_worker", None), "_loop_kwargs", None)
    return found if isinstance(found, Mapping) else {}


def describe_async(trainer: Any) -> Mapping[str, Any]:
    """Facts of the run. Rewards, tools and environments are the worker's, not the trainer's."""
    options = _worker_options(trainer)
    environments = _environments(options.get("environment_factory"))
    functions = [unwrapped(function) for function in options.get("reward_funcs") or ()]
    rewarding = [kind for kind in environments if hasattr(kind, "get_reward")]
    tools = [*(options.get("tools") or ()), *(tool for kind in environments for tool in _methods(kind))]
    return {
        **describe_trl(trainer),
        "reward_names": reward_names(SimpleNamespace(reward_funcs=[*functions, *rewarding])),
        "reward_weights": (1.0,) * (len(functions) + len(rewarding)),
        "num_generations": getattr(trainer.args, "num_generations", None),
        "tools": tuple(tool_schemas(SimpleNamespace(tools=tools))),
    }


def _environments(factories: Any) -> list[type]:
    """Classes of the environments, where they can be known without making one."""
    made = factories.values() if isinstance(factories, Mapping) else [factories]
    return list(dict.fromkeys(kind for factory in made if isinstance(kind := unwrapped(factory), type)))


def _methods(kind: type) -> list[Any]:
    """The methods that the worker offers as tools, bound, as it does."""
    found = inspect.getmembers(kind, inspect.isfunction)
    names = [name for name, _ in found if not name.startswith("_") and name not in {"reset", "get_reward"}]
    return [MethodType(getattr(kind, name), kind) for name in names]
