"""Check the arguments of `record`, and apply them to the rollouts of the batch."""

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
    """Marks for arguments that were invalid, by name."""


def record_arguments(
    *, step: Any, split: Any, policy_step: Any, group_size: Any, last_step: int, is_checked: bool
) -> RecordArguments:
    """Return the checked arguments. An invalid one raises if `is_checked`, and is otherwise replaced and marked."""
    faults: dict[str, str] = {}

    def read(name: str, value: Any, convert: Callable[[Any], Any], fallback: Any, accepted: str) -> Any:
        try:
            return convert(value)
        except Exception:
            faults[name] = f"{name} is {_to_text(value)}; give {accepted}"
            return fallback

    arguments = RecordArguments(
        step=read("step", step, operator.index, last_step, "the number of the optimizer step"),
        split=read("split", split, _split, "train", "'train' or 'eval'"),
        policy_step=read("policy_step", policy_step, _integer_or_none, None, "an integer, or leave it out"),
        group_size=read(
            "group_size", group_size, _positive_or_none, None, "an integer of at least 1, or leave it out"
        ),
    )
    if faults and is_checked:
        raise SetupError("; ".join(faults.values()))
    arguments.marks.update({f"lost:{name}": fault for name, fault in faults.items()})
    return arguments


def _split(value: Any) -> str:
    if value not in ("train", "eval"):
        raise ValueError
    return str(value)


def _integer_or_none(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _positive_or_none(value: Any) -> int | None:
    number = _integer_or_none(value)
    if number is not None and number < 1:
        raise ValueError
    return number


def _to_text(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"


def apply_arguments(
    batch: Unsorted, arguments: RecordArguments, run: Run, *, recorded_at: float, tokens: bool
) -> RolloutColumns:
    """Return the rollouts of a batch with their positions, and with values that only the arguments have.

    `recorded_at` is the time of recording, and `tokens` whether token ids, masks and log-probabilities are recorded.
    """
    rollouts = assign_groups(batch, arguments.group_size)
    totals = zip(rollouts["reward"], rollouts["rewards"], strict=True)
    rollouts.set_columns(
        # Indices are unique across processes even if these have different numbers of rollouts.
        index=[index * run.world_size + run.rank for index in rollouts["index"]],
        group=[group * run.world_size + run.rank for group in rollouts["group"]],
        policy_step=[arguments.policy_step if step is None else step for step in rollouts["policy_step"]],
        time=[time if isinstance(time, (int, float)) and time else recorded_at for time in rollouts["time"]],
        reward=[_total(rewards, run) if reward is None else reward for reward, rewards in totals],
    )
    if not tokens:
        rollouts.set_columns(tokens=[None] * len(rollouts))
    if arguments.marks:
        rollouts.set_columns(marks=[{**m, **arguments.marks} if isinstance(m, dict) else m for m in rollouts["marks"]])
    return rollouts


def _total(rewards: Mapping[str, float | None], run: Run) -> float | None:
    """Return the weighted sum if the weights are known or there is only one reward."""
    if not isinstance(rewards, dict) or any(
        reward is not None and type(reward) is not float for reward in rewards.values()
    ):
        return None
    weights = dict(zip(run.reward_names, run.reward_weights, strict=False))
    if not weights and len(rewards) != 1:
        return None
    return weighted_sum(rewards, [weights.get(name, 1.0) for name in rewards])
