"""tinker-cookbook: trajectory groups with the traces of their transitions, and `*_rollout_summaries.jsonl` files."""

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
from rollout_plugins.shapes._fields import dict_in, finish_of, list_in, messages, spoken, whole, whole_or_none
from rollout_plugins.shapes._files import each_row, find
from rollout_plugins.shapes._speech import Decode, Speech, decoder

NAME = "tinker-cookbook"
LACKS = (
    "texts, unless traces were written: prompt and completion are empty then",
    "advantages, token ids and log-probabilities",
    "the wording of tool calls that did not parse",
)
_TRACE = ("prompt", "policy_response", "reward_data", "env_state", "extra")


@dataclass(frozen=True, slots=True)
class RolloutTrace:
    """What was said in one transition, for `Transition.trace`. A copy: what the environment does next does not show.

    Make it before the environment takes its step, also when that step ends the episode because the answer did not
    parse or the context is full.
    """

    prompt: Any
    """Messages the policy was given, or text."""
    policy_response: Any
    """The message it answered with, several, or text."""
    reward_data: Mapping[str, Any] = field(default_factory=dict)
    """Numbers behind the reward, raw."""

    def __post_init__(self) -> None:
        for own in fields(self):
            object.__setattr__(self, own.name, Snapshot().copy(getattr(self, own.name)))


def rollouts(groups: Any, tokenizer: Any = None, *, tags: Sequence[Sequence[str]] | None = None) -> ForeignRollouts:
    """A trajectory group or a list of them: one rollout for each trajectory.

    Args:
        groups: `TrajectoryGroup`s, with `trajectories_G`, `final_rewards_G` and `metrics_G`. A transition's `trace`
            is a `RolloutTrace`, or anything with a `prompt` and a `policy_response`.
        tokenizer: for the texts of trajectories without traces.
        tags: the tags of each group.
    """
    return ForeignRollouts(lambda wanted: _take(groups, tokenizer, tags, wanted))


def _take(groups: Any, tokenizer: Any, tags: Any, wanted: CopyOptions) -> CopiedBatch:
    listed = groups if isinstance(groups, (list, tuple)) else [groups]
    decode = decoder(tokenizer) if tokenizer is not None else None
    reader = _Reader(wanted, with_ids=wanted.tokens or decode is not None)
    items = [item for place, group in enumerate(listed) for item in reader.group(group, place, _tags(tags, place))]
    return copied_batch(partial(_found, decode=decode), items, reader.copier.bytes, ("steps", "final"))


def _tags(tags: Any, place: int) -> list[Any]:
    return list(tags[place]) if tags is not None and place < len(tags) else []


class _Reader:
    """Reads groups into what tinker-cookbook itself would write of them, and the tokens of each transition."""

    def __init__(self, wanted: CopyOptions, *, with_ids: bool) -> None:
        self.copier = Snapshot()
        self._is_checked = wanted.checked
        self._with_ids = with_ids

    def group(self, group: Any, place: int, tags: list[Any]) -> list[Any]:
        """An item for each trajectory. Rewards that don't line up with the trajectories belong to none of them."""
        trajectories = getattr(group, "trajectories_G", None)
        if trajectories is None:
            if self._is_checked:
                raise SetupError(
                    f"group {place} is of type {type(group).__name__}; give a TrajectoryGroup or a list of them"
                )
            return [REJECTED if group is None else UNREADABLE]
        marks: dict[str, str] = {}
        finals, metrics = (
            self._aligned(group, name, len(trajectories), place, marks) for name in ("final_rewards_G", "metrics_G")
        )
        facts = {"group_idx": place, "tags": tags}
        return [
            self._item(trajectory, {**facts, "final_reward": to_float(final), "trajectory_metrics": some}, dict(marks))
            for trajectory, final, some in zip(trajectories, finals, metrics, strict=True)
        ]

    def _aligned(self, group: Any, name: str, count: int, place: int, marks: dict[str, str]) -> list[Any]:
        values = getattr(group, name, None)
        values = [] if values is None else list(values)
        if len(values) == count:
            return self.copier.copy(values)  # type: ignore[no-any-return]
        fault = f"group {place} has {count} trajectories, but {len(values)} of {name}"
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
        """Each transition's ids; none where one is without them, as an observation with images is."""
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
    kept = {name: value for name in _TRACE if (value := trace.get(name)) is not None}
    speakers = (("prompt", "user"), ("policy_response", "assistant"))
    return kept | {name: _talk(kept[name], role) for name, role in speakers if name in kept}


def _talk(said: Any, role: str) -> dict[str, Any]:
    """Messages as the traces have them; a lone message or text is a list of one."""
    if isinstance(said, dict) and isinstance(said.get("messages"), list):
        return said
    listed = said if isinstance(said, (list, tuple)) else [said]
    return {"messages": [{"role": role, "content": one} if isinstance(one, str) else one for one in listed]}


def _turn(transition: Any) -> tuple[list[int], list[int], list[float] | None]:
    """Ids of the observation and the action, and the action's log-probabilities."""
    seen, action = transition.ob, transition.ac
    logprobs = getattr(action, "maybe_logprobs", None) or getattr(action, "logprobs", None)
    ids = seen.to_ints() if hasattr(seen, "to_ints") else seen
    return list(ids), list(action.tokens), list(logprobs) if logprobs is not None else None


def _found(item: tuple[dict[str, Any], list[Any], dict[str, str]], decode: Decode | None) -> Unplaced:
    row, turns, marks = item
    rollout = replace(_rollout(row), marks=marks)
    if turns:
        speech, logprobs = _speech(turns)
        if decode is not None and not rollout.prompt and not rollout.completion:
            rollout = replace(rollout, prompt=speech.prompt(decode), completion=speech.completion(decode))
        rollout = replace(rollout, tokens=speech.tokens(logprobs))
    return Unplaced(rollout, row["group_idx"])


def _speech(turns: Sequence[tuple[list[int], list[int], list[float] | None]]) -> tuple[Speech, list[float] | None]:
    """All turns in one sequence: an observation that repeats what came before adds only its end."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for seen, said, some in turns:
        new = seen[len(ids) :] if seen[: len(ids)] == ids else seen
        ids += [*new, *said]
        mask += [0] * len(new) + [1] * len(said)
        logprobs += [0.0] * len(new) + list(some or ())
    return Speech(ids, mask), logprobs if len(logprobs) == len(ids) else None


def _rollout(row: dict[str, Any]) -> Rollout:
    """The rollout of one trajectory's summary."""
    steps = [step for step in row["steps"] if isinstance(step, dict)]
    last = steps[-1] if steps else {}
    return Rollout(
        id="",
        split="train" if row.get("split") == "train" else "eval",
        step=whole(row.get("iteration")),
        policy_step=whole_or_none(row.get("sampling_client_step")),
        **spoken(*_conversation([dict_in(step, "trace") for step in steps])),
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
    """What the steps themselves earned, the final reward, and the total, which a file has and memory has not."""
    final = to_float(row.get("final_reward"))
    total = to_float(row["total_reward"]) if "total_reward" in row else _total([*steps, final])
    earned = None
    if type(total) is float and type(final) is float:
        known = all(type(reward) is float for reward in steps)
        earned = sum(steps, 0.0) if known else total - final  # the difference is the same, but for rounding
    return {"rewards": {"steps": earned, "final": final}, "reward": total}


def _total(rewards: Sequence[Any]) -> Any:
    """All rewards together; None where one is missing. One that is not a number stands for the sum, to be marked."""
    odd = [reward for reward in rewards if type(reward) is not float]
    return next((reward for reward in odd if reward is not None), None) if odd else sum(rewards)


def _sum(steps: list[dict[str, Any]], name: str) -> int | None:
    """A number of the steps added up; None when one does not have it."""
    numbers = [real(step.get(name)) for step in steps]
    return sum(map(whole, numbers)) if numbers and None not in numbers else None


def _ending(last: dict[str, Any]) -> dict[str, Any]:
    """Why it ended. The environment's reasons weigh more than the sampler's."""
    metrics = dict_in(last, "metrics")
    if metrics.get("parse_error"):
        return {"finish": "error", "error": "the last answer did not parse"}
    if metrics.get("context_overflow"):
        return {"finish": "length"}
    return {"finish": finish_of(last.get("stop_reason"))}


def _conversation(traces: list[dict[str, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first prompt, and everything said since: each later prompt repeats what came before it."""
    prompt = _messages(traces[0], "prompt") if traces else ()
    said: list[Any] = []
    for trace in traces:
        said += _messages(trace, "prompt")[len(prompt) + len(said) :]
        said += _messages(trace, "policy_response")
    after = _messages(dict_in(traces[-1], "extra"), "next_messages") if traces else ()
    return prompt, (*said, *after[len(prompt) + len(said) :])


def _messages(trace: dict[str, Any], name: str) -> tuple[Any, ...]:
    return messages(list_in(dict_in(trace, name), "messages"))


def _without_text(step: dict[str, Any]) -> dict[str, Any]:
    """A step's numbers; of its trace, what is not conversation."""
    trace = dict_in(step, "trace")
    kept = {name: trace[name] for name in ("reward_data", "env_state") if trace.get(name) is not None}
    return {**{name: value for name, value in step.items() if name != "trace"}, **kept}


# --- files ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """One rollout for each trajectory."""
    for file in find(path, "**/*rollout_summaries.jsonl", "the log_path, or one *_rollout_summaries.jsonl"):
        yield from each_row(file, _summary)


def _summary(row: dict[str, Any]) -> Unplaced | Lost:
    if "group_idx" not in row or not isinstance(row.get("steps"), list):
        return Lost("row that is not a rollout summary")
    return Unplaced(_rollout(row), row["group_idx"])
