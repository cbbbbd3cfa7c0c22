"""Build rollouts from the samples of an asynchronous trainer, on the worker thread."""

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

    def _rollout(self, index: int, conversation: Conversation) -> Rollout:
        messages = conversation_fields(conversation.prompt, conversation.completion)
        calls = messages["tool_calls"] = tuple(map(_with_status, messages["tool_calls"]))
        scores, others = _scores(conversation.metrics)
        first, last = conversation.rows[0], conversation.rows[-1]
        return Rollout(
            id="",
            rank=self._rank,
            policy_step=conversation.policy_step,
            index=index,
            group=conversation.group if isinstance(conversation.group, int) else index,
            group_size=self._group_size,
            time=conversation.time,
            **messages,
            rewards={name.removeprefix(_PREFIX): score for name, score in scores.items() if name != "reward"},
            reward=scores.get("reward"),
            advantage=conversation.advantage,
            prompt_tokens=first.prompt_length,
            completion_tokens=sum(row.trained_tokens for row in conversation.rows),
            finish=finish_of(last.last, self._ends, calls),
            extra={**others, **conversation.facts},
            rendered=self._rendered(first),
            tokens=_tokens(conversation.rows) if self._keeps_tokens else None,
            marks=_marks(conversation),
        )

    def _rendered(self, row: Row) -> str | None:
        if not self._tokenizer:
            return None
        return str(self._tokenizer.decode(row.ids[: row.prompt_length].tolist(), skip_special_tokens=False))


def _with_status(call: ToolCall) -> ToolCall:
    """Return the call with its status. The worker has its own error text for an unknown tool."""
    return replace(call, status="unknown") if call.error == f"unknown tool {call.name}" else call


def _scores(metrics: Mapping[Any, Any]) -> tuple[dict[str, float | None], dict[Any, Any]]:
    """Split the metrics into rewards as numbers, and the others."""
    scores: dict[str, float | None] = {}
    others: dict[Any, Any] = {}
    for name, value in metrics.items():
        if name == "reward" or (isinstance(name, str) and name.startswith(_PREFIX)):
            try:
                scores[name] = reward_or_none(float(value))
                continue
            except (TypeError, ValueError, OverflowError):
                pass
        others[name] = value
    return scores, others


def _marks(conversation: Conversation) -> dict[str, str]:
    rows = len(conversation.rows)
    forks = {"forks": f"received as {rows} rows, whose tokens differ"} if rows > 1 else {}
    return {"trained": conversation.fate, **forks}


def _tokens(rows: Sequence[Row]) -> Tokens:
    """Return the tokens, of several rows only those that each adds: its other tokens repeat the earlier
    conversation.
    """
    return Tokens(
        prompt=rows[0].ids[: rows[0].prompt_length].tolist(),
        completion=_joined([row.ids[row.prompt_length :] for row in rows]),
        mask=_joined([row.mask[row.prompt_length :] for row in rows]),
        logprobs=None if rows[0].logprobs is None else _joined([row.logprobs[row.prompt_length :] for row in rows]),
    )


def _joined(arrays: Sequence[Any]) -> list[Any]:
    return list(chain.from_iterable(array.tolist() for array in arrays))


def _worker_options(trainer: Any) -> Mapping[str, Any]:
    """Return the options of the trainer's own worker; a user's worker does not expose them."""
    options = getattr(getattr(trainer, "rollout_worker", None), "_loop_kwargs", None)
    return options if isinstance(options, Mapping) else {}


def describe_async(trainer: Any) -> Mapping[str, Any]:
    """Return the facts of the run. Rewards, tools and environments belong to the worker, not to the trainer."""
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
    """Return the classes of the environments that are known without instantiating one."""
    all_factories = factories.values() if isinstance(factories, Mapping) else [factories]
    return list(dict.fromkeys(cls for factory in all_factories if isinstance(cls := unwrapped(factory), type)))


def _methods(kind: type) -> list[Any]:
    """Return the methods that the worker offers as tools, bound like there."""
    functions = inspect.getmembers(kind, inspect.isfunction)
    names = [name for name, _ in functions if not name.startswith("_") and name not in {"reset", "get_reward"}]
    return [MethodType(getattr(kind, name), kind) for name in names]
