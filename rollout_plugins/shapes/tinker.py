"""tinker-cookbook's trajectory groups, read through the traces of their transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rollout_plugins.errors import SetupError
from rollout_plugins.shapes.shaped import REJECTED, UNREADABLE, Asked, Shaped, Taken, bytes_of, each
from rollout_plugins.shapes.speech import Decode, Speech, decoder
from rollout_plugins.snapshot import Snapshot
from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import given
from rollout_plugins.store.importers.tinker import found

REWARDS = ("steps", "final")


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


def rollouts(groups: Any, tokenizer: Any = None, *, tags: Sequence[Sequence[str]] | None = None) -> Shaped:
    """A trajectory group or a list of them: one rollout for each trajectory.

    Args:
        groups: `TrajectoryGroup`s, with `trajectories_G`, `final_rewards_G` and `metrics_G`. A transition's `trace`
            is a `RolloutTrace`, or anything with a `prompt` and a `policy_response`.
        tokenizer: for the texts of trajectories without traces.
        tags: the tags of each group.
    """
    return Shaped(lambda asked: _take(groups, tokenizer, tags, asked))


def _take(groups: Any, tokenizer: Any, tags: Any, asked: Asked) -> Taken:
    listed = list(groups) if isinstance(groups, (list, tuple)) else [groups]
    decode = decoder(tokenizer) if tokenizer is not None else None
    read = _Reader(Snapshot(), asked, with_ids=asked.tokens or decode is not None)
    rows = [row for place, group in enumerate(listed) for row in read.group(group, place, _tags(tags, place))]
    count = len(rows) - rows.count(REJECTED)
    size = bytes_of(count, read.copier.bytes)
    return Taken(lambda: each(lambda row: _found(row[0], row[1], row[2], decode), rows), count, size, REWARDS)


def _tags(tags: Any, place: int) -> list[Any]:
    return list(tags[place]) if tags is not None and place < len(tags) else []


class _Reader:
    """Reads groups into what tinker-cookbook itself would write of them, and the tokens of each transition."""

    def __init__(self, copier: Snapshot, asked: Asked, *, with_ids: bool) -> None:
        self.copier = copier
        self._asked = asked
        self._with_ids = with_ids
        self._marks: dict[str, str] = {}
        """What is to be noted of each trajectory of the group at hand."""

    def group(self, group: Any, place: int, tags: list[Any]) -> list[Any]:
        """A row for each trajectory. Rewards are nobody's where they don't line up with the trajectories."""
        self._marks = {}
        trajectories = getattr(group, "trajectories_G", None)
        if trajectories is None and self._asked.checked:
            raise SetupError(
                f"group {place} is of type {type(group).__name__}; give a TrajectoryGroup or a list of them"
            )
        if trajectories is None:
            return [REJECTED if group is None else UNREADABLE]
        finals = self._aligned(group, "final_rewards_G", len(trajectories), place)
        metrics = self._aligned(group, "metrics_G", len(trajectories), place)
        return [
            self._row(
                trajectory, {"group_idx": place, "tags": tags, "final_reward": final, "trajectory_metrics": some}
            )
            for trajectory, final, some in zip(trajectories, finals, metrics, strict=True)
        ]

    def _aligned(self, group: Any, name: str, count: int, place: int) -> list[Any]:
        values = getattr(group, name, None)
        values = [] if values is None else list(values)
        if len(values) == count:
            return self.copier.copy(values)  # type: ignore[no-any-return]
        said = f"group {place} has {count} trajectories, but {len(values)} of {name}"
        if self._asked.checked:
            raise SetupError(f"{said}; give one for each")
        self._marks[f"lost:{name}"] = said
        return [None] * count

    def _row(self, trajectory: Any, facts: dict[str, Any]) -> Any:
        if trajectory is None:
            return REJECTED
        try:
            transitions = list(trajectory.transitions)
            steps = [self._step(transition) for transition in transitions]
        except (Exception, SystemExit):
            return UNREADABLE
        marks = dict(self._marks)
        turns = self._turns(transitions, marks)
        final = given(facts["final_reward"])
        row = {**facts, "final_reward": final, "total_reward": _total(steps, final), "steps": steps}
        return row, turns, marks

    def _turns(self, transitions: Sequence[Any], marks: dict[str, str]) -> list[Any]:
        """Each transition's ids; none where one is without them, as an observation with images is."""
        try:
            return [_turn(transition) for transition in transitions] if self._with_ids else []
        except (Exception, SystemExit) as error:
            marks["lost:tokens"] = f"a turn has no token ids: {str(error)[:120] or type(error).__name__}"
            return []

    def _step(self, transition: Any) -> dict[str, Any]:
        action = transition.ac
        step = {
            "ob_len": getattr(transition.ob, "length", None),
            "ac_len": len(action.tokens),
            "reward": given(transition.reward),
            "episode_done": transition.episode_done,
            "stop_reason": getattr(action, "stop_reason", None),
        }
        said = {name: getattr(transition, name, None) for name in ("metrics", "logs", "trace")}
        more = {name: value for name, value in said.items() if value}
        if "trace" in more:
            more["trace"] = self._trace(more["trace"])
        copied: dict[str, Any] = self.copier.copy(more)
        return step | copied

    def _trace(self, trace: Any) -> dict[str, Any]:
        names = ("prompt", "policy_response", "reward_data", "env_state", "extra")
        values = {
            name: trace.get(name) if isinstance(trace, Mapping) else getattr(trace, name, None) for name in names
        }
        kept = {name: value for name, value in values.items() if value is not None}
        speakers = (("prompt", "user"), ("policy_response", "assistant"))
        return kept | {name: _talk(kept[name], role) for name, role in speakers if name in kept}


def _talk(said: Any, role: str) -> dict[str, Any]:
    """Messages as the traces have them; a lone message or text is a list of one."""
    if isinstance(said, dict) and isinstance(said.get("messages"), list):
        return said
    messages = said if isinstance(said, (list, tuple)) else [said]
    return {"messages": [{"role": role, "content": one} if isinstance(one, str) else one for one in messages]}


def _turn(transition: Any) -> tuple[list[int], list[int], list[float] | None]:
    """Ids of the observation and the action, and the action's log-probabilities."""
    seen, action = transition.ob, transition.ac
    logprobs = getattr(action, "maybe_logprobs", None) or getattr(action, "logprobs", None)
    ids = seen.to_ints() if hasattr(seen, "to_ints") else seen
    return list(ids), list(action.tokens), list(logprobs) if logprobs is not None else None


def _total(steps: Sequence[dict[str, Any]], final: Any) -> Any:
    """All rewards together; None where one is missing. One that is not a number stands for the sum, to be marked."""
    rewards = [*(step["reward"] for step in steps), final]
    odd = [reward for reward in rewards if type(reward) is not float]
    if odd:
        return next((reward for reward in odd if reward is not None), None)
    return sum(rewards[:-1]) + final


def _found(row: dict[str, Any], turns: Any, marks: dict[str, str], decode: Decode | None) -> Found:
    made = found(row)
    rollout = replace(made.rollout, marks={**made.rollout.marks, **marks})
    if not turns:
        return Found(rollout, made.group)
    speech, logprobs = _speech(turns)
    if decode is not None and not rollout.prompt and not rollout.completion:
        rollout = replace(rollout, prompt=speech.prompt(decode), completion=speech.completion(decode))
    return Found(replace(rollout, tokens=speech.tokens(logprobs)), made.group)


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
