"""Build rollouts from an observed generation, on the worker thread."""

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
    """Create the batch of a generation on the training thread; its rollouts are built on the worker thread."""
    generation.drop_unneeded()
    return Batch(
        build=build or partial(_build, generation),
        split="train" if generation.split == "train" else "eval",
        step=generation.step,
        count=generation.count,
        bytes=generation.occupied_bytes,
        gathered=generation.peers is not None or generation.world == 1,
        seconds=generation.seconds,
    )


def _build(generation: Generation) -> Sequence[Rollout]:
    for work in generation.later:
        work()
    return Builder(generation).rollouts()


class Builder:
    """Turns one generation into rollouts."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._tools = [getattr(tool, "__name__", "") for tool in getattr(generation.trainer, "tools", None) or ()]
        self._end_ids = end_ids(generation.trainer)

    def rollouts(self) -> Sequence[Rollout]:
        """Return this rank's rollouts and, with the option `gather`, those of other ranks from the trainer's log."""
        own = self._own_rollouts()
        return own if self._generation.peers is None else [*own, *self._peer_rollouts()]

    def _own_rollouts(self) -> RolloutColumns:
        """Return this rank's rollouts as columns, ordered by their index in the batch."""
        generation = self._generation
        prompts, completions = self._prompts(), self._completions()
        if generation.completions is None:
            completions.is_text = prompts.is_text
        calls = self._outcomes(completions)
        extras = [self._extra(i) for i in range(generation.count)]
        rewards = self._rewards()
        weights = generation.rewards.weights
        columns: dict[str, Sequence[Any]] = {
            "prompt": prompts,
            "prompt_is_text": prompts.is_text,
            "completion": completions,
            "completion_is_text": completions.is_text,
            "tool_calls": calls,
            "rewards": rewards,
            "reward": generation.totals[: generation.count] or [weighted_sum(row, weights) for row in rewards],
            "prompt_tokens": self._prompt_lengths() or [None] * generation.count,
            "completion_tokens": generation.written_counts or generation.lengths or [None] * generation.count,
            "finish": [self._finish(i, calls) for i in range(generation.count)],
            "columns": generation.columns,
            "extra": [extra for extra, _ in extras],
            "marks": [marks for _, marks in extras],
            **{
                name: [value] * generation.count
                for name, value in (("rank", generation.rank), ("error", generation.error))
            },
        }
        if generation.advantages:
            columns["advantage"] = generation.advantages[: generation.count]
        if generation.options.get("rendered"):
            columns["rendered"] = [self._rendered(i) for i in range(generation.count)]
        if generation.options.get("tokens"):
            columns["tokens"] = TokenColumn.of([self._token_data(i) for i in range(generation.count)])
        return self._in_order(RolloutColumns(generation.count, columns))

    def _in_order(self, drafts: RolloutColumns) -> RolloutColumns:
        """Return the rollouts with their index, group and other common values, sorted by index."""
        generation = self._generation
        places = generation.places or list(range(generation.count))
        if places != sorted(places):
            order = sorted(range(generation.count), key=places.__getitem__)
            places, drafts = sorted(places), drafts.take(order)
        first = generation.rank * (generation.width or generation.count)
        common = [self._common(first + place) for place in places]
        drafts.set_columns(**{name: [row[name] for row in common] for name in self._common(0) if name != "id"})
        return drafts

    def _common(self, index: int) -> dict[str, Any]:
        generation = self._generation
        return {
            "id": "",
            "policy_step": generation.policy_step,
            "index": index,
            "group": index // generation.group_size,
            "group_size": generation.group_size,
            "time": generation.time,
        }

    def _prompt_lengths(self) -> list[int] | None:
        """Return the prompt lengths that were counted on the training thread, or count them from ids found later."""
        return self._generation.prompt_lengths or (
            None if self._prompt_ids is None else list(map(len, self._prompt_ids))
        )

    def _rewards(self) -> list[dict[str, Any]]:
        names, rows = self._generation.rewards.names, self._generation.rewards.rows
        if not rows:
            return [dict.fromkeys(names) for _ in range(self._generation.count)]
        return [dict(zip(names, row, strict=True)) for row in rows[: self._generation.count]]

    def _finish(self, i: int, calls: CallColumns) -> Any:
        generation = self._generation
        if generation.error:
            return "error"
        waiting = calls[i] if "not_run" in calls.values_of(i, "status") else ()
        return finish_of(generation.ends[i] if generation.ends else None, self._end_ids, waiting)

    def _outcomes(self, completions: MessageColumns) -> CallColumns:
        watches = self._generation.watches
        if len(watches) == len(completions):
            return watched_outcomes(completions, watches)
        return CallReader(completions, tool_names=[self._tools] * len(completions)).read()

    def _prompts(self) -> MessageColumns:
        """Return the prompts as the trainer had them, or decoded where it had only ids."""
        generation = self._generation
        if isinstance(generation.prompts, MessageColumns):
            return generation.prompts
        texts = list(generation.prompts)
        for i in (i for i, text in enumerate(texts) if text is None):
            texts[i] = generation.decoder.text(list(generation.prompt_ids[i]))
        return MessageColumns(texts, "user")

    def _completions(self) -> MessageColumns:
        """Return the completions as the trainer had them, or decoded from their ids."""
        generation = self._generation
        if isinstance(generation.completions, MessageColumns):
            return generation.completions
        if generation.completions is not None:
            return MessageColumns(generation.completions, "assistant")
        return MessageColumns([generation.decoder.answer(list(ids)) for ids in generation.ids], "assistant")

    def _extra(self, i: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a rollout's extra values and marks. A column of another length is stored with the first rollout."""
        generation = self._generation
        extra: dict[str, Any] = {}
        marks = {**(generation.marks[i] if generation.marks else {}), **generation.unknown}
        if i in generation.replaced:
            marks["replaced"] = "the trainer trains on another rollout in its place"
        for name, values in generation.extra.items():
            if len(values) == generation.count:
                extra[name] = values[i]
            elif i == 0:
                extra[name] = values
                marks[f"extra:{name}"] = (
                    f"all {len(values)} values of {generation.count} rollouts; stored here in full"
                )
        return extra, marks

    @cached_property
    def _prompt_ids(self) -> Any:
        """The prompts' token ids, if the trainer has them."""
        ids = self._generation.prompt_ids
        return ids if isinstance(ids, list) and len(ids) == self._generation.count else None

    @cached_property
    def _masks(self) -> Any:
        """The masks: 1 for tokens that the model wrote, 0 for tool results; None if the model wrote all."""
        masks = self._generation.tool_mask
        return masks if isinstance(masks, list) and list(map(len, masks)) == self._generation.lengths else None

    def _rendered(self, i: int) -> str | None:
        generation = self._generation
        tokenizer = generation.options.get("rendered")
        if not tokenizer or self._prompt_ids is None:
            return None
        return str(tokenizer.decode(list(self._prompt_ids[i]), skip_special_tokens=False))

    def _token_data(self, i: int) -> Tokens | None:
        generation = self._generation
        if not generation.options.get("tokens") or not generation.ids:
            return None
        masks, length = self._masks, generation.lengths[i]
        return Tokens(
            prompt=self._prompt_ids[i] if self._prompt_ids is not None else None,
            completion=generation.ids[i],
            mask=array("b", masks[i] if masks is not None else b"\1" * length),
            logprobs=self._per_token("sampling_per_token_logps", i, length),
            trainer_logprobs=self._per_token("old_per_token_logps", i, length),
            reference_logprobs=self._per_token("ref_per_token_logps", i, length),
        )

    def _per_token(self, name: str, i: int, length: int) -> Any:
        generation = self._generation
        tensor = generation.tensors.get(name)
        return tensor[i][:length] if tensor is not None and i not in generation.replaced else None

    def _peer_rollouts(self) -> list[Rollout]:
        generation = self._generation
        logged = generation.peers or {}
        indices = [i for i in range(generation.count * generation.world) if i // generation.count != generation.rank]
        return [self.logged(logged, i, i // generation.count) for i in indices]

    def logged(self, logged: Mapping[str, Any], i: int, rank: int) -> Rollout:
        """Return a rollout from the trainer's log, which has no columns, token counts or durations of tools."""
        generation = self._generation
        rewards = {
            name: self._reward_from_log(name, logged, i)
            for name in generation.rewards.names
            if name in logged["rewards"]
        }
        return Rollout(
            **self._common(i),
            rank=rank,
            **conversation_fields(logged["prompt"][i], logged["completion"][i], tools=self._tools),
            rewards=rewards,
            reward=weighted_sum(rewards, generation.rewards.weights),
            advantage=logged["advantages"][i],
            extra={name: values[i] for name, values in logged["extra"].items()},
            marks={"source": "the trainer's own log"},
        )

    def _reward_from_log(self, name: str, logged: Mapping[str, Any], i: int) -> float | None:
        """Return a reward from the log, which has 32 bits; a function's as the shortest number with these bits."""
        value = reward_or_none(logged["rewards"][name][i])
        return value if value is None or name in self._models else shortest_float(value)

    @cached_property
    def _models(self) -> set[str]:
        functions = getattr(self._generation.trainer, "reward_funcs", None) or ()
        named = zip(self._generation.rewards.names, functions, strict=False)
        return {name for name, function in named if hasattr(function, "forward")}


def reward_or_none(value: float) -> float | None:
    """Return a reward from the trainer's numbers, where NaN means that the function returned none."""
    return None if math.isnan(value) else value
