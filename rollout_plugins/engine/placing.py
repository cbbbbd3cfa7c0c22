"""From what a shape found to rollouts with their places in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.incoming import Lost, Unplaced, placed
from rollout_plugins.content.rewards import weighted


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """What the rollouts of a batch do not say themselves."""

    time: float
    """When they were recorded."""
    policy_step: int | None = None
    """Updates the generating weights had."""
    group_size: int | None = None
    """So many in a row answer the same prompt."""
    rank: int = 0
    """This process."""
    world_size: int = 1
    """Number of processes."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of the rewards, by name."""
    tokens: bool = False
    """Whether token ids, masks and log-probabilities are kept."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """What is to be noted of each."""

    def rollouts(self, found: Sequence[Unplaced | Lost], lost: Callable[[str], object]) -> list[Rollout]:
        """The rollouts; what is none is told to `lost`, by reason."""
        kept = [(place, one) for place, one in enumerate(found) if isinstance(one, Unplaced)]
        for one in found:
            if isinstance(one, Lost):
                lost(one.reason)
        keys = [self._key(place, one) for place, one in kept]
        return [self._finished(rollout) for rollout in placed([one for _, one in kept], keys)]

    def _key(self, place: int, one: Unplaced) -> Any:
        """What the answers to one prompt have in common: their place, what the loop says, or else the prompt."""
        if self.group_size:
            return place // self.group_size
        return content_hash(one.group if one.group is not None else one.rollout.prompt)

    def _finished(self, rollout: Rollout) -> Rollout:
        """Places count over all processes, whatever number of rollouts each has."""
        policy_step, reward = rollout.policy_step, rollout.reward
        return replace(
            rollout,
            index=rollout.index * self.world_size + self.rank,
            group=rollout.group * self.world_size + self.rank,
            policy_step=self.policy_step if policy_step is None else policy_step,
            time=rollout.time if isinstance(rollout.time, (int, float)) and rollout.time else self.time,
            reward=self._total(rollout) if reward is None else reward,
            tokens=rollout.tokens if self.tokens else None,
            marks={**rollout.marks, **self.marks} if isinstance(rollout.marks, dict) else rollout.marks,
        )

    def _total(self, rollout: Rollout) -> float | None:
        """The weighted sum where weights are known, or there is only one reward."""
        rewards = rollout.rewards
        if not isinstance(rewards, dict) or not all(
            value is None or type(value) is float for value in rewards.values()
        ):
            return None
        if not self.weights and len(rewards) != 1:
            return None
        return weighted(rewards, [self.weights.get(name, 1.0) for name in rewards])
