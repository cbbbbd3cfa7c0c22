"""Where recorded rollouts belong: the arguments of `record`, and what they say of each rollout of the batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollout_hookspecs import Rollout, Run

from rollout_plugins.content.drafts import Drafts
from rollout_plugins.content.incoming import Lost, Unplaced, Unsorted, placed, sort
from rollout_plugins.content.rewards import weighted
from rollout_plugins.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordArguments:
    """The arguments of `record` beside the rollouts."""

    step: int
    split: Literal["train", "eval"]
    policy_step: int | None
    group_size: int | None
    marks: dict[str, str] = field(default_factory=dict)
    """Arguments that make no sense."""


def record_arguments(
    *, step: Any, split: Any, policy_step: Any, group_size: Any, last_step: int, is_checked: bool
) -> RecordArguments:
    """The arguments as they should be. One that makes no sense is a mistake at first, and later only marked."""
    faults: dict[str, str] = {}

    def read(name: str, value: Any, convert: Callable[[Any], Any], fallback: Any, wanted: str) -> Any:
        try:
            return convert(value)
        except Exception:
            faults[name] = f"{name} is {_shown(value)}; give {wanted}"
            return fallback

    found = RecordArguments(
        step=read("step", step, operator.index, last_step, "the number of the optimizer step"),
        split=read("split", split, _split, "train", "'train' or 'eval'"),
        policy_step=read("policy_step", policy_step, _whole_or_none, None, "a whole number, or leave it out"),
        group_size=read("group_size", group_size, _positive_or_none, None, "a number from 1, or leave it out"),
    )
    if faults and is_checked:
        raise SetupError("; ".join(faults.values()))
    found.marks.update({f"lost:{name}": fault for name, fault in faults.items()})
    return found


def _split(value: Any) -> str:
    if value not in ("train", "eval"):
        raise ValueError
    return str(value)


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _positive_or_none(value: Any) -> int | None:
    number = _whole_or_none(value)
    if number is not None and number < 1:
        raise ValueError
    return number


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """What the rollouts of a batch do not say themselves."""

    arguments: RecordArguments
    run: Run
    time: float
    """When they were recorded."""
    tokens: bool
    """Whether token ids, masks and log-probabilities are kept."""

    def rollouts(
        self, found: Sequence[Unplaced | Lost] | Unsorted, lost: Callable[[str], object]
    ) -> Sequence[Rollout]:
        """The rollouts; `lost` is told the reason for each that is not one."""
        if isinstance(found, Unsorted):
            return self._finish_all(sort(found, self.arguments.group_size))
        for one in found:
            if isinstance(one, Lost):
                lost(one.reason)
        return [self._finished(rollout) for rollout in placed(found, self.arguments.group_size)]

    def _finish_all(self, drafts: Drafts) -> Drafts:
        """The same as for each, for columns."""
        run, said = self.run, self.arguments
        totals = zip(drafts["reward"], drafts["rewards"], strict=True)
        drafts.put(
            index=[index * run.world_size + run.rank for index in drafts["index"]],
            group=[group * run.world_size + run.rank for group in drafts["group"]],
            policy_step=[said.policy_step if step is None else step for step in drafts["policy_step"]],
            time=[one if isinstance(one, (int, float)) and one else self.time for one in drafts["time"]],
            reward=[self._total(rewards) if reward is None else reward for reward, rewards in totals],
        )
        if said.marks:
            drafts.put(marks=[{**m, **said.marks} if isinstance(m, dict) else m for m in drafts["marks"]])
        return drafts

    def _finished(self, rollout: Rollout) -> Rollout:
        """Places count over all processes, also when these have different numbers of rollouts."""
        run, policy_step, reward, marks = self.run, rollout.policy_step, rollout.reward, rollout.marks
        return replace(
            rollout,
            index=rollout.index * run.world_size + run.rank,
            group=rollout.group * run.world_size + run.rank,
            policy_step=self.arguments.policy_step if policy_step is None else policy_step,
            time=rollout.time if isinstance(rollout.time, (int, float)) and rollout.time else self.time,
            reward=self._total(rollout.rewards) if reward is None else reward,
            tokens=rollout.tokens if self.tokens else None,
            marks={**marks, **self.arguments.marks} if isinstance(marks, dict) else marks,
        )

    def _total(self, rewards: Mapping[str, float | None]) -> float | None:
        """The weighted sum where weights are known, or there is only one reward."""
        if not isinstance(rewards, dict) or any(
            one is not None and type(one) is not float for one in rewards.values()
        ):
            return None
        weights = dict(zip(self.run.reward_names, self.run.reward_weights, strict=False))
        if not weights and len(rewards) != 1:
            return None
        return weighted(rewards, [weights.get(name, 1.0) for name in rewards])
