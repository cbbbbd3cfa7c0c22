"""Where recorded rollouts belong: the arguments of `record`, and what they say of each rollout of the batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollout_hookspecs import Run

from rollout_plugins.content.foreign_values import Unsorted, assign_groups
from rollout_plugins.content.rewards import weighted_sum
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordArguments:
    """The arguments of `record` besides the rollouts."""

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


def placed(found: Unsorted, said: RecordArguments, run: Run, *, now: float, tokens: bool) -> RolloutColumns:
    """The rollouts of a batch, with what they do not say themselves.

    now: when they were recorded.
    tokens: whether token ids, masks and log-probabilities are kept.
    """
    drafts = assign_groups(found, said.group_size)
    totals = zip(drafts["reward"], drafts["rewards"], strict=True)
    drafts.set_columns(
        # Places count over all processes, also when these have different numbers of rollouts.
        index=[index * run.world_size + run.rank for index in drafts["index"]],
        group=[group * run.world_size + run.rank for group in drafts["group"]],
        policy_step=[said.policy_step if step is None else step for step in drafts["policy_step"]],
        time=[one if isinstance(one, (int, float)) and one else now for one in drafts["time"]],
        reward=[_total(rewards, run) if reward is None else reward for reward, rewards in totals],
    )
    if not tokens:
        drafts.set_columns(tokens=[None] * len(drafts))
    if said.marks:
        drafts.set_columns(marks=[{**m, **said.marks} if isinstance(m, dict) else m for m in drafts["marks"]])
    return drafts


def _total(rewards: Mapping[str, float | None], run: Run) -> float | None:
    """The weighted sum where weights are known, or there is only one reward."""
    if not isinstance(rewards, dict) or any(one is not None and type(one) is not float for one in rewards.values()):
        return None
    weights = dict(zip(run.reward_names, run.reward_weights, strict=False))
    if not weights and len(rewards) != 1:
        return None
    return weighted_sum(rewards, [weights.get(name, 1.0) for name in rewards])
