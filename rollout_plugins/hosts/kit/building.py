"""Rollouts out of what was observed of a generation; all of it on the worker thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from rollout_hookspecs import Batch, Rollout, Tokens, ToolCall

from rollout_plugins.content.messages import as_messages
from rollout_plugins.content.rewards import weighted
from rollout_plugins.content.tool_calls import tool_calls
from rollout_plugins.hosts.kit.decoding import end_ids, finish_of
from rollout_plugins.hosts.kit.generation import Generation
from rollout_plugins.hosts.kit.watching import watched_calls


def batch_of(now: Generation, build: Callable[[], list[Rollout]] | None = None) -> Batch:
    """What is handed over on the training thread; its rollouts are built on the worker's."""
    now.let_go()
    return Batch(
        build=build or partial(_built, now),
        split="train" if now.split == "train" else "eval",
        step=now.step,
        count=now.count,
        bytes=now.held,
        gathered=now.peers is not None or now.world == 1,
        seconds=now.seconds,
    )


def _built(now: Generation) -> list[Rollout]:
    for work in now.later:
        work()
    return Builder(now).rollouts()


class Builder:
    """Turns one generation into rollouts."""

    def __init__(self, seen: Generation) -> None:
        self._seen = seen
        self._tools = [getattr(tool, "__name__", "") for tool in getattr(seen.trainer, "tools", None) or ()]
        self._end_ids = end_ids(seen.trainer)

    def rollouts(self) -> list[Rollout]:
        """The rollouts of this rank, then, when asked for, those of the other ranks from the trainer's log."""
        seen = self._seen
        own = [self._rollout(i) for i in sorted(range(seen.count), key=self._place)]
        return own + (self._peer_rollouts() if seen.peers is not None else [])

    def _place(self, i: int) -> int:
        """Where a row stands among those of this rank: in its order, unless the trainer has another."""
        return self._seen.places[i] if self._seen.places else i

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
        prompt, prompt_is_text = self._prompt(i)
        completion, completion_is_text = self._completion(i, prompt_is_text)
        calls = self._calls(i, completion)
        names = seen.rewards.names
        rewards = dict(zip(names, seen.rewards.rows[i], strict=True)) if seen.rewards.rows else dict.fromkeys(names)
        extra, marks = self._extra(i)
        return Rollout(
            **self._common(seen.share * (seen.width or seen.count) + self._place(i)),
            rank=seen.rank,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=calls,
            rewards=rewards,
            reward=seen.totals[i] if seen.totals else weighted(rewards, seen.rewards.weights),
            advantage=seen.advantages[i] if seen.advantages else None,
            prompt_tokens=len(self._prompt_ids[i]) if self._prompt_ids is not None else None,
            completion_tokens=self._completion_length(i),
            finish="error" if seen.error else finish_of(seen.ends[i] if seen.ends else None, self._end_ids, calls),
            columns=seen.columns[i],
            extra=extra,
            marks=marks,
            rendered=self._rendered(i),
            tokens=self._token_data(i),
            error=seen.error,
        )

    def _calls(self, i: int, completion: Sequence[Any]) -> tuple[ToolCall, ...]:
        watches = self._seen.watches
        return watched_calls(completion, watches[i]) if i < len(watches) else tool_calls(completion, known=self._tools)

    def _prompt(self, i: int) -> tuple[tuple[Any, ...], bool]:
        """The prompt as the trainer had it; what the model was given, decoded, where the trainer had ids alone."""
        prompt = self._seen.prompts[i]
        if prompt is None:
            prompt = self._seen.decoder.text(list(self._seen.prompt_ids[i]))
        return as_messages(prompt, "user")

    def _completion(self, i: int, prompt_is_text: bool) -> tuple[tuple[Any, ...], bool]:
        """The completion as the trainer had it; else its ids decoded, and text where the prompt is."""
        seen = self._seen
        if seen.completions is not None:
            return as_messages(seen.completions[i], "assistant")
        return ({"role": "assistant", "content": seen.decoder.answer(list(seen.ids[i]))},), prompt_is_text

    def _extra(self, i: int) -> tuple[dict[str, Any], dict[str, str]]:
        """This rollout's values. A column of another length belongs to no rollout: the first one keeps it whole."""
        seen = self._seen
        extra: dict[str, Any] = {}
        marks = {**(seen.marks[i] if seen.marks else {}), **seen.unknown}
        if i in seen.replaced:
            marks["replaced"] = "the trainer trains on another rollout in its place"
        for name, values in seen.extra.items():
            if len(values) == seen.count:
                extra[name] = values[i]
            elif i == 0:
                extra[name] = values
                marks[f"extra:{name}"] = f"all {len(values)} values that {seen.count} rollouts got; kept here whole"
        return extra, marks

    @cached_property
    def _prompt_ids(self) -> Any:
        """Prompt token ids, where the trainer has them."""
        ids = self._seen.prompt_ids
        return ids if isinstance(ids, list) and len(ids) == self._seen.count else None

    @cached_property
    def _masks(self) -> Any:
        """1 for tokens the model wrote, 0 for tool results; None when all are the model's."""
        masks = self._seen.tool_mask
        if isinstance(masks, list) and [len(m) for m in masks] == self._seen.lengths:
            return masks
        return None

    def _completion_length(self, i: int) -> int | None:
        if self._masks is not None:
            return list(self._masks[i]).count(1)
        return self._seen.lengths[i] if self._seen.lengths else None

    def _rendered(self, i: int) -> str | None:
        seen = self._seen
        tokenizer = seen.options.get("rendered")
        if not tokenizer or self._prompt_ids is None:
            return None
        return str(tokenizer.decode(list(self._prompt_ids[i]), skip_special_tokens=False))

    def _token_data(self, i: int) -> Tokens | None:
        seen = self._seen
        if not seen.options.get("tokens") or not seen.ids:
            return None
        masks = self._masks
        length = seen.lengths[i]
        return Tokens(
            prompt=list(self._prompt_ids[i]) if self._prompt_ids is not None else None,
            completion=list(seen.ids[i]),
            mask=list(masks[i]) if masks is not None else [1] * length,
            logprobs=self._per_token("sampling_per_token_logps", i, length),
            trainer_logprobs=self._per_token("old_per_token_logps", i, length),
            reference_logprobs=self._per_token("ref_per_token_logps", i, length),
        )

    def _per_token(self, name: str, i: int, length: int) -> list[float] | None:
        seen = self._seen
        tensor = seen.tensors.get(name)
        return tensor[i][:length].tolist() if tensor is not None and i not in seen.replaced else None

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
        rewards = {
            name: self._logged_reward(name, logged, i) for name in seen.rewards.names if name in logged["rewards"]
        }
        return Rollout(
            **self._common(i),
            rank=rank,
            prompt=prompt,
            prompt_is_text=prompt_is_text,
            completion=completion,
            completion_is_text=completion_is_text,
            tool_calls=tool_calls(completion, known=self._tools),
            rewards=rewards,
            reward=weighted(rewards, seen.rewards.weights),
            advantage=logged["advantages"][i],
            extra={name: values[i] for name, values in logged["extra"].items()},
            marks={"source": "the trainer's own log"},
        )

    def _logged_reward(self, name: str, logged: Mapping[str, Any], i: int) -> float | None:
        """The log has 32 bits of a reward: all of a model's, but what a function gave had other digits after those."""
        value = given(logged["rewards"][name][i])
        return value if value is None or name in self._models else shortest(value)

    @cached_property
    def _models(self) -> set[str]:
        functions = getattr(self._seen.trainer, "reward_funcs", None) or ()
        return {
            name for name, one in zip(self._seen.rewards.names, functions, strict=False) if hasattr(one, "forward")
        }


def shortest(value: float) -> float:
    """The number with the fewest digits that is this one in 32 bits: 52.07 for 52.06999969."""
    import numpy as np

    return float(str(np.float32(value)))


def given(value: float) -> float | None:
    """A reward as the trainer's numbers have it: NaN where the function gave none."""
    return None if math.isnan(value) else value
