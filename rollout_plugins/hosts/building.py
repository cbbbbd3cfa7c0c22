"""Rollouts out of what was observed of a generation; all of it on the worker thread."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout, Tokens, ToolCall

from rollout_plugins.hosts.toolcalls import tool_calls

if TYPE_CHECKING:
    from rollout_plugins.hosts.generation import Generation


class Builder:
    """Turns one generation into rollouts."""

    def __init__(self, seen: Generation) -> None:
        self._seen = seen
        self._tools = [getattr(tool, "__name__", "") for tool in getattr(seen.trainer, "tools", None) or ()]
        self._end_ids = end_ids(seen.trainer)

    def rollouts(self) -> list[Rollout]:
        """The rollouts of this rank, then, when asked for, those of the other ranks from the trainer's log."""
        seen = self._seen
        own = [self._rollout(i) for i in range(seen.count)]
        return own + (self._peer_rollouts() if seen.peers is not None else [])

    def _common(self, index: int) -> dict[str, Any]:
        seen = self._seen
        return {
            "id": "",
            "policy_step": seen.policy_step,
            "index": index,
            "group": index // seen.group_size,
            "group_size": seen.group_size,
            "time": seen.time,
        }

    def _rollout(self, i: int) -> Rollout:
        seen = self._seen
        watch = seen.watches[i] if i < len(seen.watches) else None
        completion, completion_is_text = as_messages(seen.completions[i], "assistant")
        prompt, prompt_is_text = as_messages(seen.prompts[i], "user")
        calls = tool_calls(completion, watch, self._tools)
        rewards = dict(zip(seen.names, seen.rewards[i], strict=True)) if seen.rewards else dict.fromkeys(seen.names)
        extra, marks = self._extra(i)
        return Rollout(
            **self._common(seen.rank * seen.count + i),
            rank=seen.rank,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=calls,
            rewards=rewards,
            reward=weighted(rewards, seen.weights),
            advantage=seen.advantages[i] if seen.advantages else None,
            prompt_tokens=len(self._prompt_ids[i]) if self._prompt_ids is not None else None,
            completion_tokens=self._completion_length(i),
            finish="error" if seen.error else finish_of(seen.ends[i], self._end_ids, calls),
            columns=seen.columns[i],
            extra=extra,
            marks=marks,
            rendered=self._rendered(i),
            tokens=self._token_data(i),
            error=seen.error,
        )

    def _extra(self, i: int) -> tuple[dict[str, Any], dict[str, str]]:
        """This rollout's values. A column of another length belongs to no rollout: the first one keeps it whole."""
        seen = self._seen
        extra, marks = {}, {}
        for name, values in seen.extra.items():
            if len(values) == seen.count:
                extra[name] = values[i]
            elif i == 0:
                extra[name] = values
                marks[f"extra:{name}"] = f"all {len(values)} values that {seen.count} rollouts got; kept here whole"
        return extra, marks

    @cached_property
    def _prompt_ids(self) -> Any:
        """Prompt token ids, where the trainer's `_generate` returns them first."""
        ids = self._seen.generated[0] if self._seen.generated else None
        return ids if isinstance(ids, list) and len(ids) == self._seen.count else None

    @cached_property
    def _masks(self) -> Any:
        """1 for tokens the model wrote, 0 for tool results; None when all are the model's."""
        seen = self._seen
        masks = seen.tool_mask
        if masks is None and len(seen.generated) > 3:
            masks = seen.generated[2]
        if isinstance(masks, list) and [len(m) for m in masks] == seen.lengths:
            return masks
        return None

    def _completion_length(self, i: int) -> int:
        seen = self._seen
        masks = self._masks
        return list(masks[i]).count(1) if masks is not None else seen.lengths[i]

    def _rendered(self, i: int) -> str | None:
        seen = self._seen
        tokenizer = seen.options.get("rendered")
        if not tokenizer or self._prompt_ids is None:
            return None
        return str(tokenizer.decode(self._prompt_ids[i], skip_special_tokens=False))

    def _token_data(self, i: int) -> Tokens | None:
        seen = self._seen
        if not seen.options.get("tokens"):
            return None
        masks = self._masks
        length = seen.lengths[i]
        return Tokens(
            prompt=list(self._prompt_ids[i]) if self._prompt_ids is not None else None,
            completion=seen.ids[i],
            mask=list(masks[i]) if masks is not None else [1] * length,
            logprobs=self._per_token("sampling_per_token_logps", i, length),
            trainer_logprobs=self._per_token("old_per_token_logps", i, length),
        )

    def _per_token(self, name: str, i: int, length: int) -> list[float] | None:
        seen = self._seen
        tensor = seen.tensors.get(name)
        return tensor[i][:length].tolist() if tensor is not None else None

    def _peer_rollouts(self) -> list[Rollout]:
        seen = self._seen
        logged = seen.peers or {}
        indices = [i for i in range(seen.count * seen.world) if i // seen.count != seen.rank]
        return [self.logged(logged, i, i // seen.count) for i in indices]

    def logged(self, logged: Mapping[str, Any], i: int, rank: int) -> Rollout:
        """What the trainer's log knows: no columns, no token counts, no timing of tools."""
        seen = self._seen
        completion, completion_is_text = as_messages(logged["completion"][i], "assistant")
        prompt, prompt_is_text = as_messages(logged["prompt"][i], "user")
        rewards = {name: given(logged["rewards"][name][i]) for name in seen.names if name in logged["rewards"]}
        return Rollout(
            **self._common(i),
            rank=rank,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=tool_calls(completion, None, self._tools),
            rewards=rewards,
            reward=weighted(rewards, seen.weights),
            advantage=logged["advantages"][i],
            extra={name: values[i] for name, values in logged["extra"].items()},
            marks={"source": "the trainer's own log"},
        )


class LogTail:
    """The last generation in TRL's in-memory log, of all ranks. Only what is asked for is copied."""

    def __init__(self, logs: Mapping[str, Any], total: int, names: Sequence[str]) -> None:
        self._logs = logs
        self._total = total
        self._names = names

    @classmethod
    def of(cls, trainer: Any, total: int, names: Sequence[str]) -> LogTail | None:
        """None when the log does not hold that many rows."""
        logs = getattr(trainer, "_logs", None)
        if not isinstance(logs, dict) or not total or len(logs.get("advantages", ())) < total:
            return None
        return cls(logs, total, names)

    def _tail(self, rows: Any) -> list[Any]:
        return list(islice(rows, len(rows) - self._total, None))

    def advantages(self) -> list[float | None]:
        return self._tail(self._logs["advantages"])

    def reward(self, name: str) -> list[float] | None:
        """One function's rewards, if they are logged under a name of its own: TRL mixes those of one name."""
        if any(other.startswith(f"{name}#") for other in self._names):
            return None
        rows = self._logs["rewards"].get(name, ())
        return self._tail(rows) if len(rows) >= self._total else None

    def everything(self) -> dict[str, Any]:
        """All that is known of these rollouts, safe from what the trainer logs next."""
        rows = len(self._logs["advantages"])
        extra = {name: values for name, values in (self._logs.get("extra") or {}).items() if len(values) == rows}
        rewards = {name: self.reward(name) for name in self._names}
        return {
            "prompt": self._tail(self._logs["prompt"]),
            "completion": self._tail(self._logs["completion"]),
            "advantages": self.advantages(),
            "rewards": {name: values for name, values in rewards.items() if values is not None},
            "extra": {name: self._tail(values) for name, values in extra.items()},
        }


def as_messages(value: Any, role: str) -> tuple[tuple[Any, ...], bool]:
    """Messages as they are; a plain string becomes one message, and that is remembered."""
    if isinstance(value, str):
        return ({"role": role, "content": value},), True
    if isinstance(value, (list, tuple)):
        return tuple(value), False
    return (value,), False


def weighted(rewards: Mapping[str, float | None], weights: Sequence[float]) -> float | None:
    """The sum the trainer uses: functions that gave nothing (or NaN) don't count; None when none gave anything."""
    terms = [
        value * weight
        for value, weight in zip(rewards.values(), weights, strict=False)
        if value is not None and not math.isnan(value)
    ]
    return sum(terms) if terms else None


def finish_of(last: int | None, ends: Collection[int], calls: Sequence[ToolCall]) -> Any:
    """Why a completion ended, from its last token and what became of its calls."""
    if not ends or last is None:
        return "unknown"
    if last not in ends:
        return "length"
    waiting = [call for call in calls if call.status == "not_run"]
    if waiting:
        return "length" if any(call.error for call in waiting) else "tool_limit"
    return "stop"


def given(value: float) -> float | None:
    """A reward as the trainer's numbers have it: NaN where the function gave none."""
    return None if math.isnan(value) else value


def end_ids(trainer: Any) -> set[int]:
    """Tokens that end a completion."""
    tokenizer = getattr(trainer, "_tokenizer", None) or getattr(trainer, "processing_class", None)
    many = getattr(trainer, "eos_token_ids", None) or ()
    ones = (getattr(trainer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None))
    if not many and ones[0] is None:
        ones = (getattr(tokenizer, "eos_token_id", None), ones[1])
    return {int(token) for token in (*many, *ones) if isinstance(token, int)}
