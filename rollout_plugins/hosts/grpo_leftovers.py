"""Mark and count rollouts that are never trained on because training ends before their batch is used up.

GRPO trainers generate a batch, split it into micro-batches in `_buffered_inputs`, and take one of them in each
training step. If training stops before the last one, the rest of the rollouts stay untrained.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollout_hookspecs import Emit

from rollout_plugins.hosts.grpo_unscored import Sampled
from rollout_plugins.hosts.kit.observe_generation import Observer

TRAINED, UNKNOWN, REPLACED, LEFT_OVER, BROKE_OFF = "trained", "unknown", "replaced", "left_over", "broke_off"
_FATE_TEXTS: Final = {TRAINED: "yes", UNKNOWN: "unknown"}


class MicroBatches:
    """The micro-batches of the trainer's newest batch, and which of them it has taken."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._taken: set[int] = set()

    def begin(self) -> None:
        """Forget the micro-batches of the previous batch."""
        self._taken.clear()

    def take(self, micro_batch: Any) -> None:
        self._taken.add(id(micro_batch))

    @property
    def left(self) -> list[Any]:
        """The micro-batches that were not taken yet. Later iterations take the same objects again."""
        buffered = getattr(self._trainer, "_buffered_inputs", None)
        return [batch for batch in buffered if id(batch) not in self._taken] if isinstance(buffered, list) else []


class LeftoversObserver(Observer):
    """An observer that knows which rollouts were trained on.

    If training is planned to end inside a batch, the batch is held until then, so that each rollout can be marked.
    All other batches are submitted immediately, because a killed process loses what it holds. If training stops
    inside one of those, its untrained rollouts are counted instead of marked.
    """

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.micro_batches = MicroBatches(trainer)
        self.held: list[Sampled] = []
        self._has_more = False
        """Whether some submitted rollouts may not have been taken yet."""
        self._step = 0
        """The step of the submitted rollouts that may not have been taken yet."""
        self.watch_micro_batches()

    @abstractmethod
    def release(self, generation: Sampled) -> None:
        """Submit a generation to the engine."""

    @abstractmethod
    def count_waiting(self) -> None:
        """Report how many rollouts are held or wait to be scored."""

    @property
    def held_count(self) -> int:
        return sum(generation.count for generation in self.held)

    def watch_micro_batches(self) -> None:
        if hasattr(self.trainer, "_prepare_inputs"):
            self.wraps.wrap(self.trainer, "_prepare_inputs", lambda call: self.take(call.run()))

    def take(self, micro_batch: Any) -> Any:
        """Record that the trainer took a micro-batch, and return it unchanged."""
        with self.guarded("see which rollouts are trained on"):
            self.micro_batches.take(micro_batch)
            self.settle_unless_left()
        return micro_batch

    def begin_batch(self, step: int) -> None:
        """Settle the previous batch: the trainer generates a new one only after it has taken all of it."""
        self.settle()
        self.micro_batches.begin()
        self._has_more, self._step = True, step
        self.count_waiting()  # registers for the end of training, even if nothing is held

    def keep(self, generation: Sampled) -> None:
        """Hold a generation if training may end before all of it is trained on; otherwise submit it."""
        is_held = False
        if generation.split == "train" and generation.scored_ids and not generation.error:
            with self.guarded("see whether training ends inside a batch"):
                is_held = may_end_inside(self.trainer)
        if is_held:
            with self.guarded("read the rewards"):
                generation.read_rewards()
            self.held.append(generation)
            self.count_waiting()
        else:
            self._mark_replaced(generation)
            self.release(generation)

    def settle_unless_left(self) -> None:
        if self.held and not self.micro_batches.left:
            self.settle()
            self.count_waiting()

    def settle(self, rest: str = "") -> None:
        """Mark and submit the held generations; `rest` is the fate of rollouts that were not taken."""
        held, self.held = self.held, []
        for generation in held:
            with self.guarded("see what was trained on"):
                self.mark(generation, rest, rows_of(generation, self.micro_batches.left) if rest else set())
            self.release(generation)

    def end_batch(self) -> None:
        """Settle held generations at the end of training, and count submitted rollouts that were never taken."""
        if self.held:
            self._has_more = False
            self.settle(self.rest())
        has_more, self._has_more = self._has_more, False
        left = self.micro_batches.left if has_more and self.wraps.active else []
        if left:
            self.emit.untrained(self.rest(), count_rows(left), self._step)

    def rest(self) -> str:
        """Return the fate of rollouts that were not taken; unknown once the wrappers are off."""
        return fate_of_the_rest(self.trainer) if self.wraps.active else UNKNOWN

    def mark(self, generation: Sampled, rest: str, rows: set[int]) -> None:
        """Mark each rollout with its fate, which is `rest` for those in `rows`, and count the untrained ones."""
        fates = [
            REPLACED if i in generation.replaced else rest if i in rows else TRAINED for i in range(generation.count)
        ]
        old_marks = generation.marks or [{} for _ in fates]
        fate_texts = [_FATE_TEXTS.get(fate, f"no: {fate}") for fate in fates]
        generation.marks = [{**marks, "trained": word} for marks, word in zip(old_marks, fate_texts, strict=True)]
        for fate, count in Counter(fates).items():
            if fate not in _FATE_TEXTS:
                self.emit.untrained(fate, count, generation.step)

    def _mark_replaced(self, generation: Sampled) -> None:
        if generation.replaced:
            old_marks = generation.marks or [{} for _ in range(generation.count)]
            new_mark = {"trained": f"no: {REPLACED}"}
            generation.marks = [
                {**marks, **new_mark} if i in generation.replaced else marks for i, marks in enumerate(old_marks)
            ]
            self.emit.untrained(REPLACED, len(generation.replaced), generation.step)


def may_end_inside(trainer: Any) -> bool:
    """Return whether training is planned to end before all micro-batches of the current batch are taken."""
    args, state = trainer.args, trainer.state
    each_step = max(int(args.gradient_accumulation_steps), 1)
    micro_batches = int(getattr(args, "steps_per_generation", None) or each_step)
    taken = int(getattr(trainer, "_step", 0)) % each_step
    return (int(state.max_steps) - int(state.global_step)) * each_step - taken < micro_batches


def fate_of_the_rest(trainer: Any) -> str:
    """Return the fate of rollouts that were not taken: left over at the planned end, broken off before it."""
    state, control = trainer.state, trainer.control
    is_over = control.should_training_stop or state.global_step >= state.max_steps
    return LEFT_OVER if is_over else BROKE_OFF


def count_rows(micro_batches: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(batch["completion_ids"]) for batch in micro_batches)


def rows_of(generation: Sampled, micro_batches: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the indices of the rollouts in these micro-batches, by token ids because TRL shuffles the rows."""
    rows: set[int] = set()
    for batch in micro_batches:
        for prompt, completion in zip(batch["prompt_ids"].tolist(), batch["completion_ids"].tolist(), strict=True):
            matches = (
                i for i in range(generation.count) if i not in rows and _is_row(generation, i, prompt, completion)
            )
            rows |= {*[next(matches, -1)]} - {-1}
    return rows


def _is_row(generation: Sampled, i: int, prompt: list[int], completion: list[int]) -> bool:
    completion_ids = list(generation.scored_ids[i])
    prompt_ids = list(generation.prompt_ids[i]) if isinstance(generation.prompt_ids, list) else []
    return (
        completion[: len(completion_ids)] == completion_ids and prompt[len(prompt) - len(prompt_ids) :] == prompt_ids
    )
