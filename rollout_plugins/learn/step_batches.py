"""Read what a training step trained on: the rollouts of its generations, in micro-batches, with their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rollout_plugins.errors import RunError
from rollout_plugins.reading.fault_tokens import read_fault_tokens
from rollout_plugins.system.labels import count

if TYPE_CHECKING:
    from rollout_hookspecs import Rollout

    from rollout_plugins.reading.runs import StoredRun

PLACE = "trained_place"
"""In `extra` of a rollout: its place in the order in which its rank trained the generation."""


@dataclass(frozen=True)
class GenerationBatch:
    """The rollouts of one generation, and the micro-batches of them that a step trains on."""

    rollouts: Sequence[Rollout]
    """Of all ranks, in the order in which the trainer made them."""
    micro_batches: Sequence[Sequence[int]]
    """For each micro-batch of the step, the places of its rollouts in `rollouts`."""


@dataclass(frozen=True)
class StepBatch:
    """What an optimizer step trains on."""

    step: int
    generations: Sequence[GenerationBatch]
    ranks: int
    has_order: bool
    """Whether the order of the micro-batches was recorded; without it, they hold the rollouts in generation order."""

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts that the step trains on, micro-batch by micro-batch."""
        return [
            generation.rollouts[place]
            for generation in self.generations
            for batch in generation.micro_batches
            for place in batch
        ]


@dataclass(frozen=True)
class _Schedule:
    """How a trainer spreads generations over steps."""

    batch: int
    accumulation: int
    per_generation: int
    iterations: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> _Schedule:
        accumulation = int(settings.get("gradient_accumulation_steps") or 1)
        return cls(
            batch=int(settings.get("per_device_train_batch_size") or 1),
            accumulation=accumulation,
            per_generation=int(settings.get("steps_per_generation") or accumulation),
            iterations=int(settings.get("num_iterations") or 1),
        )

    @property
    def uses(self) -> int:
        """Micro-batches that a generation is trained in, with repetitions."""
        return self.per_generation * self.iterations

    def micro_batches(self, first_step: int, step: int) -> list[int]:
        """Return the micro-batches of a generation that `step` trains on; its first step is `first_step`."""
        if self.accumulation % self.uses == 0:
            return [number % self.per_generation for number in range(self.uses)]
        start = (step - first_step) * self.accumulation
        return [number % self.per_generation for number in range(start, start + self.accumulation)]


def read_step(run: StoredRun, step: int) -> StepBatch:
    """Return what a step of a run trained on; raise if the run does not have its tokens."""
    schedule = _Schedule.of(run.info.settings)
    if schedule.uses % schedule.accumulation and schedule.accumulation % schedule.uses:
        raise RunError(
            f"{run.place}: generations of {schedule.uses} micro-batches do not line up with steps of "
            f"{schedule.accumulation}, so it is not known which rollouts step {step} trained on"
        )
    first = _first_step(run, step, max(1, schedule.uses // schedule.accumulation))
    rollouts = list(run.rollouts(split="train", step=first, tokens=True))
    if any(one.tokens is None for one in rollouts):
        stored = read_fault_tokens(run.dir, first)
        rollouts = [replace(one, tokens=one.tokens or stored.get(one.id)) for one in rollouts]
    _check_tokens(run, rollouts, step)
    by_generation: dict[tuple[int, int], list[Rollout]] = {}
    for rollout in rollouts:
        by_generation.setdefault((rollout.attempt, rollout.generation), []).append(rollout)
    generations, has_order = [], True
    for members in by_generation.values():
        members.sort(key=lambda rollout: rollout.index)
        order, is_recorded = _order(members)
        has_order &= is_recorded
        wanted = schedule.micro_batches(first, step)
        batches = [
            [places[i] for i in range(number * schedule.batch, (number + 1) * schedule.batch) if i < len(places)]
            for number in wanted
            for places in order
        ]
        generations.append(GenerationBatch(members, [batch for batch in batches if batch]))
    ranks = max((rollout.rank for rollout in rollouts), default=0) + 1
    return StepBatch(step, generations, ranks, has_order)


def _first_step(run: StoredRun, step: int, span: int) -> int:
    """Return the first step of the generation that `step` trains on, which spans so many steps."""
    steps = run.steps
    first = max((one for one in steps if one <= step), default=None)
    if first is None or step >= first + span:
        known = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no training steps"
        raise RunError(f"no rollouts of {run.place} were trained on at step {step}; {known}")
    return first


def _check_tokens(run: StoredRun, rollouts: Sequence[Rollout], step: int) -> None:
    lacking = [one for one in rollouts if one.tokens is None or not one.tokens.prompt or not one.tokens.completion]
    if len(lacking) == len(rollouts):
        raise RunError(
            f"{run.place} has no tokens of step {step}, so it cannot be trained again; record with "
            'RolloutPluginCallback(tokens=True), or tokens="on-fault"'
        )
    if lacking:
        raise RunError(f"{count(len(lacking), 'rollout')} of step {step}, such as {lacking[0].id}, have no tokens")


def _order(members: Sequence[Rollout]) -> tuple[list[list[int]], bool]:
    """Return, for each rank, the places of its rollouts in the order of training, and whether that was recorded."""
    by_rank: dict[int, list[int]] = {}
    for place, rollout in enumerate(members):
        by_rank.setdefault(rollout.rank, []).append(place)
    is_recorded = all(isinstance(rollout.extra.get(PLACE), int) for rollout in members)
    if is_recorded:
        for places in by_rank.values():
            places.sort(key=lambda place: members[place].extra[PLACE])
    return [by_rank[rank] for rank in sorted(by_rank)], is_recorded
