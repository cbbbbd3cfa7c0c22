"""Read tinker-cookbook's trajectory groups, and its `*_rollout_summaries.jsonl` files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.foreign_values import (
    REJECTED,
    UNREADABLE,
    CopiedBatch,
    CopyOptions,
    ForeignRollouts,
    Lost,
    Unplaced,
    copied_batch,
)
from rollout_plugins.content.numbers import real
from rollout_plugins.content.rewards import to_float
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.errors import SetupError
from rollout_plugins.shapes._fields import (
    as_whole,
    as_whole_or_none,
    dict_in,
    finish_of,
    list_in,
    message_fields,
    messages,
)
from rollout_plugins.shapes._files import each_row, find_files
from rollout_plugins.shapes._speech import Decode, TokenSpans, decoder

NAME = "tinker-cookbook"
LACKS = (
    "texts, unless traces were written: prompt and completion are empty then",
    "advantages, token ids and log-probabilities",
    "the text of tool calls that did not parse",
)
_TRACE = ("prompt", "policy_response", "reward_data", "env_state", "extra")


@dataclass(frozen=True, slots=True)
class RolloutTrace:
    """The messages of one transition, for `Transition.trace`; a copy that later changes in the environment do not
    affect.

    Create it before the environment takes its step, also if that step ends the episode because the answer did not
    parse or the context is full.
    """

    prompt: Any
    """The messages that the policy received, or text."""
    policy_response: Any
    """The policy's answer: a message, several, or text."""
    reward_data: Mapping[str, Any] = field(default_factory=dict)
    """The raw numbers behind the reward."""

    def __post_init__(self) -> None:
        for own in fields(self):
            object.__setattr__(self, own.name, Snapshot().copy(getattr(self, own.name)))


def rollouts(groups: Any, tokenizer: Any = None, *, tags: Sequence[Sequence[str]] | None = None) -> ForeignRollouts:
    """Return one rollout for each trajectory in a trajectory group or a list of groups.

    Args:
        groups: `TrajectoryGroup`s, with `trajectories_G`, `final_rewards_G` and `metrics_G`. A transition's `trace`
            is a `RolloutTrace`, or any object with a `prompt` and a `policy_response`.
        tokenizer: decodes the texts of trajectories without traces.
        tags: the tags of each group.
    """
    return ForeignRollouts(lambda options: _take(groups, tokenizer, tags, options))


def _take(groups: Any, tokenizer: Any, tags: Any, options: CopyOptions) -> CopiedBatch:
    all_groups = groups if isinstance(groups, (list, tuple)) else [groups]
    decode = decoder(tokenizer) if tokenizer is not None else None
    reader = _Reader(options, with_ids=options.tokens or decode is not None)
    items = [item for index, group in enumerate(all_groups) for item in reader.group(group, index, _tags(tags, index))]
    return copied_batch(partial(_item_rollout, decode=decode), items, reader.copier.bytes, ("steps", "final"))


def _tags(tags: Any, place: int) -> list[Any]:
    return list(tags[place]) if tags is not None and place < len(tags) else []


class _Reader:
    """Reads groups into the rows that tinker-cookbook itself would write, and the tokens of each transition."""

    def __init__(self, options: CopyOptions, *, with_ids: bool) -> None:
        self.copier = Snapshot()
        self._is_checked = options.checked
        self._with_ids = with_ids

    def group(self, group: Any, index: int, tags: list[Any]) -> list[Any]:
        """Return an item for each trajectory. Rewards that do not line up with the trajectories are left out."""
        trajectories = getattr(group, "trajectories_G", None)
        if trajectories is None:
            if self._is_checked:
                raise SetupError(
                    f"group {index} is of type {type(group).__name__}: give a TrajectoryGroup or a list of them"
                )
            return [REJECTED if group is None else UNREADABLE]
        marks: dict[str, str] = {}
        finals, metrics = (
            self._aligned(group, name, len(trajectories), index, marks) for name in ("final_rewards_G", "metrics_G")
        )
        facts = {"group_idx": index, "tags": tags}
        return [
            self._item(
                trajectory, {**facts, "final_reward": to_float(final), "trajectory_metrics": values}, dict(marks)
            )
            for trajectory, final, values in zip(trajectories, finals, metrics, strict=True)
        ]

    def _aligned(self, group: Any, name: str, count: int, index: int, marks: dict[str, str]) -> list[Any]:
        values = getattr(group, name, None)
        values = [] if values is None else list(values)
        if len(values) == count:
            return self.copier.copy(values)  # type: ignore[no-any-return]
        fault = f"group {index} has {count} trajectories, but {len(values)} of {name}"
        if self._is_checked:
            raise SetupError(f"{fault}; give one for each")
        marks[f"lost:{name}"] = fault
        return [None] * count

    def _item(self, trajectory: Any, facts: dict[str, Any], marks: dict[str, str]) -> Any:
        if trajectory is None:
            return REJECTED
        try:
            transitions = list(trajectory.transitions)
            steps = [self._step(transition) for transition in transitions]
        except (Exception, SystemExit):
            return UNREADABLE
        return {**facts, "steps": steps}, self._turns(transitions, marks), marks

    def _turns(self, transitions: Sequence[Any], marks: dict[str, str]) -> list[Any]:
        """Return each transition's ids; an empty list if one has none, such as an observation with images."""
        try:
            return [_turn(transition) for transition in transitions] if self._with_ids else []
        except (Exception, SystemExit) as error:
            marks["lost:tokens"] = f"a turn has no token ids: {str(error)[:120] or type(error).__name__}"
            return []

    def _step(self, transition: Any) -> dict[str, Any]:
        action = transition.ac
        more = {name: value for name in ("metrics", "logs") if (value := getattr(transition, name, None))}
        if trace := getattr(transition, "trace", None):
            more["trace"] = _trace(trace)
        copied: dict[str, Any] = self.copier.copy(more)
        return {
            "ob_len": getattr(transition.ob, "length", None),
            "ac_len": len(action.tokens),
            "reward": to_float(transition.reward),
            "episode_done": transition.episode_done,
            "stop_reason": getattr(action, "stop_reason", None),
            **copied,
        }


def _trace(trace: Any) -> dict[str, Any]:
    if not isinstance(trace, Mapping):
        trace = {name: getattr(trace, name, None) for name in _TRACE}
    fields_of_trace = {name: value for name in _TRACE if (value := trace.get(name)) is not None}
    roles = (("prompt", "user"), ("policy_response", "assistant"))
    conversations = {
        name: _as_messages(fields_of_trace[name], role) for name, role in roles if name in fields_of_trace
    }
    return fields_of_trace | conversations


def _as_messages(value: Any, role: str) -> dict[str, Any]:
    """Return messages in the traces' format; a single message or text becomes a list of one."""
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        return value
    items = value if isinstance(value, (list, tuple)) else [value]
    return {"messages": [{"role": role, "content": item} if isinstance(item, str) else item for item in items]}


def _turn(transition: Any) -> tuple[list[int], list[int], list[float] | None]:
    """Return the ids of the observation and of the action, and the action's log-probabilities."""
    observation, action = transition.ob, transition.ac
    logprobs = getattr(action, "maybe_logprobs", None) or getattr(action, "logprobs", None)
    ids = observation.to_ints() if hasattr(observation, "to_ints") else observation
    return list(ids), list(action.tokens), list(logprobs) if logprobs is not None else None


def _item_rollout(item: tuple[dict[str, Any], list[Any], dict[str, str]], decode: Decode | None) -> Unplaced:
    row, turns, marks = item
    rollout = replace(_rollout(row), marks=marks)
    if turns:
        spans, logprobs = _join_turns(turns)
        if decode is not None and not rollout.prompt and not rollout.completion:
            rollout = replace(rollout, prompt=spans.prompt(decode), completion=spans.completion(decode))
        rollout = replace(rollout, tokens=spans.tokens(logprobs))
    return Unplaced(rollout, row["group_idx"])


def _join_turns(
    turns: Sequence[tuple[list[int], list[int], list[float] | None]],
) -> tuple[TokenSpans, list[float] | None]:
    """Join all turns into one sequence. An observation that starts with all earlier tokens adds only its end."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for observation, action, action_logprobs in turns:
        new = observation[len(ids) :] if observation[: len(ids)] == ids else observation
        ids += [*new, *action]
        mask += [0] * len(new) + [1] * len(action)
        logprobs += [0.0] * len(new) + list(action_logprobs or ())
    return TokenSpans(ids, mask), logprobs if len(logprobs) == len(ids) else None


def _rollout(row: dict[str, Any]) -> Rollout:
    """Return the rollout of one trajectory's summary."""
    steps = [step for step in row["steps"] if isinstance(step, dict)]
    last = steps[-1] if steps else {}
    return Rollout(
        id="",
        split="train" if row.get("split") == "train" else "eval",
        step=as_whole(row.get("iteration")),
        policy_step=as_whole_or_none(row.get("sampling_client_step")),
        **message_fields(*_conversation([dict_in(step, "trace") for step in steps])),
        **_rewards(row, [to_float(step.get("reward")) for step in steps]),
        prompt_tokens=_sum(steps[:1], "ob_len"),
        completion_tokens=_sum(steps, "ac_len"),
        **_ending(last),
        columns={name: row[name] for name in ("split", "tags") if row.get(name)},
        extra={
            **({"trajectory_metrics": metrics} if (metrics := dict_in(row, "trajectory_metrics")) else {}),
            "steps": [_without_text(step) for step in steps],
        },
    )


def _rewards(row: Mapping[str, Any], steps: Sequence[Any]) -> dict[str, Any]:
    """Return the reward of the steps, the final reward, and the total, which only a file states."""
    final = to_float(row.get("final_reward"))
    total = to_float(row["total_reward"]) if "total_reward" in row else _sum_or_odd([*steps, final])
    earned = None
    if type(total) is float and type(final) is float:
        are_numbers = all(type(reward) is float for reward in steps)
        earned = sum(steps, 0.0) if are_numbers else total - final  # equal but for rounding
    return {"rewards": {"steps": earned, "final": final}, "reward": total}


def _sum_or_odd(rewards: Sequence[Any]) -> Any:
    """Return the sum; None if a reward is missing. A reward that is not a number is returned itself, to be marked."""
    odd = [reward for reward in rewards if type(reward) is not float]
    return next((reward for reward in odd if reward is not None), None) if odd else sum(rewards)


def _sum(steps: list[dict[str, Any]], name: str) -> int | None:
    """Return the sum of a number over the steps; None if a step lacks it."""
    numbers = [real(step.get(name)) for step in steps]
    return sum(map(as_whole, numbers)) if numbers and None not in numbers else None


def _ending(last: dict[str, Any]) -> dict[str, Any]:
    """Return why the rollout ended. The environment's reasons take precedence over the sampler's."""
    metrics = dict_in(last, "metrics")
    if metrics.get("parse_error"):
        return {"finish": "error", "error": "the last answer did not parse"}
    if metrics.get("context_overflow"):
        return {"finish": "length"}
    return {"finish": finish_of(last.get("stop_reason"))}


def _conversation(traces: list[dict[str, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first prompt and all messages since. Each later prompt repeats the earlier messages."""
    prompt = _messages(traces[0], "prompt") if traces else ()
    completion: list[Any] = []
    for trace in traces:
        completion += _messages(trace, "prompt")[len(prompt) + len(completion) :]
        completion += _messages(trace, "policy_response")
    after = _messages(dict_in(traces[-1], "extra"), "next_messages") if traces else ()
    return prompt, (*completion, *after[len(prompt) + len(completion) :])


def _messages(trace: dict[str, Any], name: str) -> tuple[Any, ...]:
    return messages(list_in(dict_in(trace, name), "messages"))


def _without_text(step: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a step, and the parts of its trace that are not messages."""
    trace = dict_in(step, "trace")
    other_parts = {name: trace[name] for name in ("reward_data", "env_state") if trace.get(name) is not None}
    return {**{name: value for name, value in step.items() if name != "trace"}, **other_parts}


# --- files ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Yield one rollout per trajectory."""
    for file in find_files(path, "**/*rollout_summaries.jsonl", "the log_path, or one *_rollout_summaries.jsonl"):
        yield from each_row(file, _summary_rollout)


def _summary_rollout(row: dict[str, Any]) -> Unplaced | Lost:
    if "group_idx" not in row or not isinstance(row.get("steps"), list):
        return Lost("row that is not a rollout summary")
    return Unplaced(_rollout(row), row["group_idx"])
