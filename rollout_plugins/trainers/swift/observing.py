"""The host of ms-swift's GRPO trainer, a subclass of TRL's that passes samples on in its own way.

Samples are filled in step by step. One batch may be sampled several times: dynamic sampling discards groups in which
all rewards are equal, and samples others instead. Each sampling is a separate batch here; the discarded rollouts are
stored, marked and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from rollout_hookspecs import Emit, Support

from rollout_plugins.hosts.grpo_leftovers import MicroBatches, fate_of_the_rest, may_end_inside
from rollout_plugins.hosts.grpo_log import LogTail
from rollout_plugins.hosts.kit.build_rollouts import batch_of
from rollout_plugins.hosts.kit.observe_generation import Needs, Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.wrapping import Call
from rollout_plugins.trainers.swift.building import CopiedSample, Sampling, built
from rollout_plugins.trainers.swift.requests import Requests, SwiftHost, see_turn

TRAINED: Final = "yes"
NO_SPREAD: Final = "no_spread"
LEFT_OVER: Final = "left_over"
BROKE_OFF: Final = "broke_off"
UNKNOWN: Final = "unknown"


class Sampled(Generation):
    """All samplings of one batch."""

    def __init__(self, trainer: Any, options: Mapping[str, Any], *, training: bool) -> None:
        super().__init__(trainer, options, training=training)
        self.samplings: list[Sampling] = []
        self.spreads: list[list[float]] = []
        """The spread of rewards in each sample's group, for each sampling that dynamic sampling examined."""
        self.trained: dict[int, list[CopiedSample]] = {}
        """The samples that are trained on, on any rank, by their index among the samples of one rank."""


class SwiftObserver(Observer):
    needs: ClassVar[Needs] = {
        "_generate_and_score_completions": ("inputs",),
        "_compute_rewards_per_func": ("samples",),
        "_postprocess_batch": ("samples", "batch_encoded_inputs"),
    }
    decodes = True

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self._requests = Requests()
        self._micro_batches = MicroBatches(trainer)
        self._held: list[Sampled] = []
        """Batches inside which training is planned to end, held until it is known which samples are trained on."""
        self._last_count = self._last_step = 0
        """How many samples the newest batch has, if they were submitted and may not all have been taken yet."""
        self.wraps.wrap(trainer, "_prepare_inputs", lambda call: self._take(call.run()))
        self._requested_steps: dict[str, int] = {}
        """The step at which each unscored sample was requested, if the trainer generates ahead."""
        self.watch("_generate_and_score_completions", self._around_generation)
        self.watch("_compute_rewards_per_func", self._around_rewards)
        self.watch("_postprocess_batch", self._around_postprocess)
        self.watch("compute_std", self._around_compute_std, optional=True)
        self.watch("_preprocess_inputs", self._around_preprocess_inputs, optional=True)
        self.watch("_rollout", partial(see_turn, self, self._requests), ("samples",), optional=True)

    def begin(self) -> Sampled:
        generation = Sampled(self.trainer, self.options, training=self.is_training)
        generation.decoder = self.decoder
        return generation

    def _around_generation(self, generation: Sampled, call: Call) -> Any:
        self.store_rows(generation, call)
        return call.run()

    def _around_preprocess_inputs(self, generation: Sampled, call: Call) -> Any:
        """Record the ids of samples that are generated in the background and scored in a later call."""
        out = call.run()
        if getattr(self.trainer, "async_generate", False):
            with self.guarded("see the samples generated ahead"):
                self._requested_steps |= {sample.request_id: int(self.trainer.state.global_step) for sample in out}
                self._report_waiting()
        return out

    def _report_waiting(self) -> None:
        held = sum(sampling.count for generation in self._held for sampling in generation.samplings)
        self.emit.waits(len(self._requested_steps) + held, self._end_training)

    def _end_training(self) -> None:
        """Submit held batches, and count the samples generated ahead, which the trainer will not score any more."""
        with self.guarded("submit the rollouts that were not trained on"):
            self._end_batch()
        count = len(self._requested_steps)
        self._requested_steps.clear()
        if count:
            self.count_unobserved(count)
            self._report_waiting()

    # --- the fate of samples ----------------------------------------------------------------------------------------

    def _take(self, micro_batch: Any) -> Any:
        with self.guarded("see which rollouts are trained on"):
            self._micro_batches.take(micro_batch)
            if self._held and not self._micro_batches.left:
                self._release_held("")
        return micro_batch

    def _may_end_inside(self, generation: Sampled) -> bool:
        """Return whether to hold the batch. If ranks share samples, or sequences, the indices are not known here."""
        is_simple = getattr(self.trainer.template, "sequence_parallel_size", 1) == 1 and bool(generation.trained)
        self._release_held("")  # a trainer that generates again has taken all earlier samples
        self._micro_batches.begin()
        self._last_count, self._last_step = generation.count if is_simple else 0, generation.step
        self._report_waiting()  # registers for the end of training, even if nothing is held
        return is_simple and may_end_inside(self.trainer)

    def _release_held(self, rest: str) -> None:
        """Submit the held batches; `rest` is the fate of samples that were not taken."""
        held, self._held = self._held, []
        for generation in held:
            with self.guarded("see what was trained on"):
                for place in self._places_left(generation.count) if rest else ():
                    for sample in generation.trained[place]:
                        sample.fate = rest
                for sampling in generation.samplings:
                    sampling.may_be_left = True
            self._submit_all(generation)
        if held:
            self._last_count = 0
            self._report_waiting()

    def _places_left(self, count: int) -> list[int]:
        """Return the indices of samples that were not taken yet; micro-batches have them in order."""
        left = set(map(id, self._micro_batches.left))
        batches = [id(batch) in left for batch in self.trainer._buffered_inputs]  # noqa: SLF001 - TRL uses it, too
        return [place for place in range(count) if batches[place * len(batches) // count]]

    def _end_batch(self) -> None:
        rest = fate_of_the_rest(self.trainer) if self.wraps.active else UNKNOWN
        self._release_held(rest)
        count, self._last_count = self._last_count, 0
        if count and rest != UNKNOWN and self._micro_batches.left:
            self.emit.untrained(rest, len(self._places_left(count)), self._last_step)

    # --- samples --------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        super().detach()
        self._end_training()

    def _around_rewards(self, generation: Sampled, call: Call) -> Any:
        sampling = Sampling(self.trainer, self.options, training=generation.split == "train")
        sampling.decoder = generation.decoder
        with self.guarded("take a snapshot of a generation"):
            sampling.see(call.arguments["samples"], self._requested_steps, self._requests.prompt_sizes)
            generation.samplings.append(sampling)
            self._forget_requests(sampling)
        gathered = self.run_rewards(sampling, call)
        here = slice(sampling.starts_at, sampling.starts_at + sampling.count)
        if len(gathered) == sampling.count * sampling.world and not (sampling.counts_vary and sampling.world > 1):
            sampling.rewards.numbers = lambda index: gathered[here, index].tolist()
        return gathered

    def _forget_requests(self, sampling: Sampling) -> None:
        """Forget the requests of samples that we have now, whatever happens to them."""
        self._requests.forget(sample.request for sample in sampling.taken)
        if self._requested_steps:
            for sample in sampling.taken:
                self._requested_steps.pop(sample.request, None)
            self._report_waiting()

    def _around_compute_std(self, generation: Sampled, call: Call) -> Any:
        spread = call.run()
        with self.guarded("see which groups are discarded"):
            generation.spreads.append(spread.tolist())
        return spread

    def _around_postprocess(self, generation: Sampled, call: Call) -> Any:
        out = call.run()
        with self.guarded("read the advantages"):
            self._settle(generation, call.arguments["samples"])
            has_teacher = self._has_teacher(call.arguments["batch_encoded_inputs"])
            for sampling in generation.samplings:
                sampling.has_teacher = has_teacher
        return out

    def _has_teacher(self, batches: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the trainer adds a teacher's term to each token's advantage; SDAR only adds it
        to the loss.
        """
        trainer = self.trainer
        rows = (getattr(batch["grpo_batch"], "teacher_per_token_logps", None) for batch in batches)
        if all(row is None for row in rows):
            return False
        if getattr(trainer, "advantage_reweight", None) == "rlsd":
            return True
        return not getattr(trainer, "sdar_loss_coef", 0) > 0 and getattr(trainer, "teacher_kl_coef", 1) != 0

    def _settle(self, generation: Sampled, trained: Sequence[Any]) -> None:
        """Determine which samples are trained on, with their advantages and token ids."""
        generation.count = len(trained)
        first = generation.rank * generation.count
        places = _places(generation, int(getattr(self.trainer.args, "generation_batch_size", 0) or 0))
        own = [
            (sample, number, sampling.starts_at + i, places.get((number, sampling.starts_at + i)))
            for number, sampling in enumerate(generation.samplings)
            for i, sample in enumerate(sampling.taken)
        ]
        here = {place - first: sample for sample, _, _, place in own if place is not None}
        if any(i in here and here[i].request != sample.request_id for i, sample in enumerate(trained)):
            raise LookupError("the trainer trains on samples that dynamic sampling did not choose")
        advantages = self._advantages(generation, trained, first)
        for own_sample, number, i, place in own:
            own_sample.advantage = None if place is None else advantages.get(place)
            own_sample.fate = _why_not(generation, number, i) if place is None else TRAINED
            if place is not None and not generation.samplings[0].counts_vary:
                generation.trained.setdefault(place % generation.count, []).append(own_sample)
        for i, sample in enumerate(trained):
            if i in here:
                here[i].see_encoded(sample.encoded)

    def _advantages(self, generation: Sampled, trained: Sequence[Any], first: int) -> dict[int, float]:
        """Return the advantages by index among all ranks: from the trainer's log, or this rank's from the device."""
        log = None if generation.samplings[0].counts_vary else LogTail.of(generation, None)
        if log is not None:
            return {place: value for place, value in enumerate(log.advantages()) if value is not None}
        return {first + i: float(sample.advantages) for i, sample in enumerate(trained)}

    def submit(self, generation: Sampled) -> None:  # type: ignore[override]  # `begin` makes no others
        if generation.error:
            with self.guarded("keep what was generated before the error"):
                self._add_unscored(generation)
        if not generation.samplings and generation.error is None and generation.expected:
            self.on_unobserved(generation)
        is_held = False
        if generation.split == "train" and generation.samplings and not generation.error:
            with self.guarded("see whether training ends inside a batch"):
                is_held = self._may_end_inside(generation)
        if is_held:
            with self.guarded("read the rewards"):
                for sampling in generation.samplings:
                    sampling.read_rewards()
                self._held.append(generation)
                self._report_waiting()
        else:
            self._submit_all(generation)

    def _submit_all(self, generation: Sampled) -> None:
        for sampling in generation.samplings:
            self._submit(generation, sampling)
            generation.seconds = 0.0

    def _add_unscored(self, generation: Sampled) -> None:
        """Add the samples that the model answered before a scheduler or the trainer raised."""
        samples = self._requests.answered(generation)
        if not samples:
            return
        sampling = Sampling(self.trainer, self.options, training=generation.split == "train")
        sampling.decoder = generation.decoder
        sampling.see(samples, self._requested_steps, self._requests.prompt_sizes)
        generation.samplings.append(sampling)
        self._forget_requests(sampling)

    def _submit(self, generation: Sampled, sampling: Sampling) -> None:
        with self.guarded("read the rewards"):
            sampling.error = generation.error
            sampling.read_rewards()
        if generation.split == "train" and (len(generation.samplings) > 1 or sampling.may_be_left):
            default = BROKE_OFF if generation.error else UNKNOWN
            fates = Counter(sample.fate or default for sample in sampling.taken)
            for fate, count in fates.items():
                if fate not in {TRAINED, UNKNOWN}:
                    self.emit.untrained(fate, count, sampling.step)
        with self.guarded("record a generation"):
            sampling.seconds = generation.seconds
            self.emit(batch_of(sampling, partial(built, sampling)))
            self.count_refused(sampling.count)


def _places(generation: Sampled, batch_size: int) -> dict[tuple[int, int], int]:
    """Return the index of each sample of all ranks among the trained ones, as dynamic sampling chooses them.

    It takes groups with a spread, sampling after sampling, until the batch is full; if it never is, the first sampling
    is trained on unchanged.
    """
    spread = [(n, i) for n, stds in enumerate(generation.spreads) for i, std in enumerate(stds) if std > 0]
    if generation.spreads and len(spread) >= batch_size:
        return {sample: place for place, sample in enumerate(spread[:batch_size])}
    first = generation.samplings[0]
    return {(0, i): i for i in range(first.count * first.world)}


def _why_not(generation: Sampled, number: int, i: int) -> str:
    is_flat = (
        number < len(generation.spreads)
        and i < len(generation.spreads[number])
        and not generation.spreads[number][i] > 0
    )
    return NO_SPREAD if is_flat else LEFT_OVER


GRPO = SwiftHost(
    "ms-swift",
    SwiftObserver,
    (
        Support(
            trainer="swift.GRPOTrainer", advantage=True, groups=True, evaluation=True, images=True, tools=True,
            logprobs="sampler", since="ms-swift 4.6",
            note="rollouts that dynamic sampling discards are marked; earlier turns are decoded from token ids",
        ),
    ),
)  # fmt: skip
