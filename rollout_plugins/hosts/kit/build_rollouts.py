"""Rollouts out of what was observed of a generation; all of it on the worker thread."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from rollout_hookspecs import Batch, Rollout, Tokens

from rollout_plugins.content.call_columns import CallColumns, CallReader
from rollout_plugins.content.foreign_values import conversation_fields
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.rewards import shortest_float, weighted_sum
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.content.tokens import TokenColumn
from rollout_plugins.hosts.kit.decoding import end_ids, finish_of
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.watch_tools import watched_outcomes


def batch_of(generation: Generation, build: Callable[[], list[Rollout]] | None = None) -> Batch:
    """Make the batch of a generation on the training thread; its rollouts are built on the worker thread."""
    generation.let_go()
    return Batch(
        build=build or partial(_built, generation),
        split="train" if generation.split == "train" else "eval",
        step=generation.step,
        count=generation.count,
        bytes=generation.held,
        gathered=generation.peers is not None or generation.world == 1,
        seconds=generation.seconds,
    )


def _built(generation: Generation) -> Sequence[Rollout]:
    for work in generation.later:
        work()
    return Builder(generation).rollouts()


class Builder:
    """Turns one generation into rollouts."""

    def __init__(self, seen: Generation) -> None:
        self._seen = seen
        self._tools = [getattr(tool, "__name__", "") for tool in getattr(seen.trainer, "tools", None) or ()]
        self._end_ids = end_ids(seen.trainer)

    def rollouts(self) -> Sequence[Rollout]:
        """The rollouts of this rank, then, when asked for, those of the other ranks from the trainer's log."""
        own = self._own()
        return own if self._seen.peers is None else [*own, *self._peer_rollouts()]

    def _own(self) -> RolloutColumns:
        """This rank's rollouts as columns, in the order of their places."""
        seen = self._seen
        prompts, completions = self._prompts(), self._completions()
        if seen.completions is None:
            completions.is_text = prompts.is_text
        calls = self._outcomes(completions)
        extras = [self._extra(i) for i in range(seen.count)]
        rewards = self._rewards()
        weights = seen.rewards.weights
        columns: dict[str, Sequence[Any]] = {
            "prompt": prompts,
            "prompt_is_text": prompts.is_text,
            "completion": completions,
            "completion_is_text": completions.is_text,
            "tool_calls": calls,
            "rewards": rewards,
            "reward": seen.totals[: seen.count] or [weighted_sum(given, weights) for given in rewards],
            "prompt_tokens": self._prompt_lengths() or [None] * seen.count,
            "completion_tokens": seen.written or seen.lengths or [None] * seen.count,
            "finish": [self._finish(i, calls) for i in range(seen.count)],
            "columns": seen.columns,
            "extra": [extra for extra, _ in extras],
            "marks": [marks for _, marks in extras],
            **{name: [value] * seen.count for name, value in (("rank", seen.rank), ("error", seen.error))},
        }
        if seen.advantages:
            columns["advantage"] = seen.advantages[: seen.count]
        if seen.options.get("rendered"):
            columns["rendered"] = [self._rendered(i) for i in range(seen.count)]
        if seen.options.get("tokens"):
            columns["tokens"] = TokenColumn.of([self._token_data(i) for i in range(seen.count)])
        return self._placed(RolloutColumns(seen.count, columns))

    def _placed(self, drafts: RolloutColumns) -> RolloutColumns:
        """In their order, unless the trainer has another."""
        seen = self._seen
        places = seen.places or list(range(seen.count))
        if places != sorted(places):
            order = sorted(range(seen.count), key=places.__getitem__)
            places, drafts = sorted(places), drafts.take(order)
        first = seen.rank * (seen.width or seen.count)
        common = [self._common(first + place) for place in places]
        drafts.set_columns(**{name: [one[name] for one in common] for name in self._common(0) if name != "id"})
        return drafts

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

    def _prompt_lengths(self) -> list[int] | None:
        """As they were counted at first, unless the ids were only found since."""
        return self._seen.prompt_lengths or (None if self._prompt_ids is None else list(map(len, self._prompt_ids)))

    def _rewards(self) -> list[dict[str, Any]]:
        names, rows = self._seen.rewards.names, self._seen.rewards.rows
        if not rows:
            return [dict.fromkeys(names) for _ in range(self._seen.count)]
        return [dict(zip(names, row, strict=True)) for row in rows[: self._seen.count]]

    def _finish(self, i: int, calls: CallColumns) -> Any:
        seen = self._seen
        if seen.error:
            return "error"
        waiting = calls[i] if "not_run" in calls.values_of(i, "status") else ()
        return finish_of(seen.ends[i] if seen.ends else None, self._end_ids, waiting)

    def _outcomes(self, completions: MessageColumns) -> CallColumns:
        watches = self._seen.watches
        if len(watches) == len(completions):
            return watched_outcomes(completions, watches)
        return CallReader(completions, tool_names=[self._tools] * len(completions)).read()

    def _prompts(self) -> MessageColumns:
        """Prompts as the trainer had them; what the model was given, decoded, where the trainer had ids alone."""
        seen = self._seen
        if isinstance(seen.prompts, MessageColumns):
            return seen.prompts
        ids = enumerate(seen.prompts)
        return MessageColumns(
            [seen.decoder.text(list(seen.prompt_ids[i])) if one is None else one for i, one in ids], "user"
        )

    def _completions(self) -> MessageColumns:
        """Completions as the trainer had them; else their ids decoded."""
        seen = self._seen
        if isinstance(seen.completions, MessageColumns):
            return seen.completions
        if seen.completions is not None:
            return MessageColumns(seen.completions, "assistant")
        return MessageColumns([seen.decoder.answer(list(ids)) for ids in seen.ids], "assistant")

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
        return masks if isinstance(masks, list) and list(map(len, masks)) == self._seen.lengths else None

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
        masks, length = self._masks, seen.lengths[i]
        return Tokens(
            prompt=self._prompt_ids[i] if self._prompt_ids is not None else None,
            completion=seen.ids[i],
            mask=array("b", masks[i] if masks is not None else b"\1" * length),
            logprobs=self._per_token("sampling_per_token_logps", i, length),
            trainer_logprobs=self._per_token("old_per_token_logps", i, length),
            reference_logprobs=self._per_token("ref_per_token_logps", i, length),
        )

    def _per_token(self, name: str, i: int, length: int) -> Any:
        seen = self._seen
        tensor = seen.tensors.get(name)
        return tensor[i][:length] if tensor is not None and i not in seen.replaced else None

    def _peer_rollouts(self) -> list[Rollout]:
        seen = self._seen
        logged = seen.peers or {}
        indices = [i for i in range(seen.count * seen.world) if i // seen.count != seen.rank]
        return [self.logged(logged, i, i // seen.count) for i in indices]

    def logged(self, logged: Mapping[str, Any], i: int, rank: int) -> Rollout:
        """What the trainer's log knows: no columns, no token counts, no timing of tools."""
        seen = self._seen
        rewards = {
            name: self._logged_reward(name, logged, i) for name in seen.rewards.names if name in logged["rewards"]
        }
        return Rollout(
            **self._common(i),
            rank=rank,
            **conversation_fields(logged["prompt"][i], logged["completion"][i], tools=self._tools),
            rewards=rewards,
            reward=weighted_sum(rewards, seen.rewards.weights),
            advantage=logged["advantages"][i],
            extra={name: values[i] for name, values in logged["extra"].items()},
            marks={"source": "the trainer's own log"},
        )

    def _logged_reward(self, name: str, logged: Mapping[str, Any], i: int) -> float | None:
        """The log has 32 bits of a reward: all of a model's, but what a function gave had other digits after those."""
        value = given(logged["rewards"][name][i])
        return value if value is None or name in self._models else shortest_float(value)

    @cached_property
    def _models(self) -> set[str]:
        functions = getattr(self._seen.trainer, "reward_funcs", None) or ()
        return {
            name for name, one in zip(self._seen.rewards.names, functions, strict=False) if hasattr(one, "forward")
        }


def given(value: float) -> float | None:
    """A reward as the trainer's numbers have it: NaN where the function gave none."""
    return None if math.isnan(value) else value
