"""ms-swift's GRPO and GKD trainers: TRL's by their class, with a way of their own in which samples are passed on.

Samples are filled in as they go. GKD answers some prompts itself, and takes the dataset's answers to others. One batch
of GRPO may be sampled several times: dynamic sampling throws away groups in which all rewards are equal, and
samples others in their place. Each sampling is a batch of its own here; what was thrown away is stored, marked and
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from rollout_hookspecs import Batch, Emit

from rollout_plugins.hosts.grpo_log import LogTail
from rollout_plugins.hosts.kit.building import batch_of
from rollout_plugins.hosts.kit.decoding import unpadded
from rollout_plugins.hosts.kit.generation import Generation
from rollout_plugins.hosts.kit.observing import Needs, Observer
from rollout_plugins.hosts.kit.support import Support, TRLHost
from rollout_plugins.hosts.kit.wrapping import Call
from rollout_plugins.trainers.swift.building import Sampling, built

TRAINED: Final = "yes"
NO_SPREAD: Final = "no_spread"
LEFT_OVER: Final = "left_over"
BROKE_OFF: Final = "broke_off"
UNKNOWN: Final = "unknown"


class Sampled(Generation):
    """All samplings of one batch."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, options)
        self.samplings: list[Sampling] = []
        self.spreads: list[list[float]] = []
        """How far the rewards of each sample's group are apart, for each sampling that dynamic sampling looked at."""


class SwiftObserver(Observer):
    needs: ClassVar[Needs] = {
        "_generate_and_score_completions": ("inputs",),
        "_compute_rewards_per_func": ("samples",),
        "_postprocess_batch": ("samples", "batch_encoded_inputs"),
    }
    decodes = True

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self._asked: dict[str, int] = {}
        """The step at which each sample was asked for that is not scored yet, where the trainer generates ahead."""
        self.watch("_generate_and_score_completions", self._whole)
        self.watch("_compute_rewards_per_func", self._rewards)
        self.watch("_postprocess_batch", self._postprocess)
        self.watch("compute_std", self._looked_at, optional=True)
        self.watch("_preprocess_inputs", self._ahead, optional=True)

    def begin(self) -> Sampled:
        now = Sampled(self.trainer, self.options)
        now.decoder = self.decoder
        return now

    def _whole(self, now: Sampled, call: Call) -> Any:
        self.given(now, call)
        return call.run()

    def _ahead(self, now: Sampled, call: Call) -> Any:
        """Samples get their ids here. Those that are made in the background are scored in a later call."""
        out = call.run()
        if getattr(self.trainer, "async_generate", False):
            with self.guarded("see what is generated ahead"):
                self._asked |= {sample.request_id: int(self.trainer.state.global_step) for sample in out}
                self.emit.waits(len(self._asked), self._give_up)
        return out

    def _give_up(self) -> None:
        """What was generated ahead stays with the trainer's thread, and is scored no more."""
        count = len(self._asked)
        self._asked.clear()
        if count:
            self.lose(count)
            self.emit.waits(0, self._give_up)

    def detach(self) -> None:
        super().detach()
        self._give_up()

    def _rewards(self, now: Sampled, call: Call) -> Any:
        sampling = Sampling(self.trainer, self.options, training=now.split == "train")
        sampling.decoder = now.decoder
        with self.guarded("take a snapshot of a generation"):
            sampling.see(call.arguments["samples"], self._asked)
            now.samplings.append(sampling)
            self._scored(sampling)
        gathered = self.scored(sampling, call)
        here = slice(sampling.starts_at, sampling.starts_at + sampling.count)
        if len(gathered) == sampling.count * sampling.world and not (sampling.counts_vary and sampling.world > 1):
            sampling.rewards.numbers = lambda index: gathered[here, index].tolist()
        return gathered

    def _scored(self, sampling: Sampling) -> None:
        if self._asked:
            for one in sampling.taken:
                self._asked.pop(one.request, None)
            self.emit.waits(len(self._asked), self._give_up)

    def _looked_at(self, now: Sampled, call: Call) -> Any:
        spread = call.run()
        with self.guarded("see which groups are thrown away"):
            now.spreads.append(spread.tolist())
        return spread

    def _postprocess(self, now: Sampled, call: Call) -> Any:
        out = call.run()
        with self.guarded("read the advantages"):
            self._settle(now, call.arguments["samples"])
        return out

    def _settle(self, now: Sampled, trained: Sequence[Any]) -> None:
        """Which samples the trainer trains on, with their advantages and the token ids that it goes on with."""
        now.count = len(trained)
        first = now.rank * now.count
        places = _places(now, int(getattr(self.trainer.args, "generation_batch_size", 0) or 0))
        own = [
            (one, number, sampling.starts_at + i, places.get((number, sampling.starts_at + i)))
            for number, sampling in enumerate(now.samplings)
            for i, one in enumerate(sampling.taken)
        ]
        here = {place - first: one for one, _, _, place in own if place is not None}
        if any(i in here and here[i].request != sample.request_id for i, sample in enumerate(trained)):
            raise LookupError("the trainer trains on other samples than its dynamic sampling chose")
        advantages = self._advantages(now, trained, first)
        for one, number, i, place in own:
            one.advantage = None if place is None else advantages.get(place)
            one.fate = _why_not(now, number, i) if place is None else TRAINED
        for i, sample in enumerate(trained):
            if i in here:
                here[i].see_encoded(sample.encoded)

    def _advantages(self, now: Sampled, trained: Sequence[Any], first: int) -> dict[int, float]:
        """By place among those of all ranks: as numbers in the trainer's log, else this rank's from the device."""
        log = None if now.samplings[0].counts_vary else LogTail.of(now, None)
        if log is not None:
            return {place: value for place, value in enumerate(log.advantages()) if value is not None}
        return {first + i: float(sample.advantages) for i, sample in enumerate(trained)}

    def hand_over(self, now: Sampled) -> None:  # type: ignore[override]  # `begin` makes no others
        if not now.samplings and now.error is None and now.expected:
            self.missed(now)
        for sampling in now.samplings:
            self._hand_over(now, sampling)
            now.seconds = 0.0

    def _hand_over(self, now: Sampled, sampling: Sampling) -> None:
        with self.guarded("read the rewards"):
            sampling.error = now.error
            sampling.read_rewards()
        if now.split == "train" and len(now.samplings) > 1:
            fates = Counter(one.fate or (BROKE_OFF if now.error else UNKNOWN) for one in sampling.taken)
            for fate, count in fates.items():
                if fate not in {TRAINED, UNKNOWN}:
                    self.emit.untrained(fate, count)
        with self.guarded("record a generation"):
            sampling.seconds = now.seconds
            self.emit(batch_of(sampling, partial(built, sampling)))
            self.count_refused(sampling.count)


class SwiftGKDObserver(Observer):
    """Watches a trainer that has its student answer a batch of prompts, or takes the dataset's answers to them."""

    needs: ClassVar[Needs] = {
        "_generate_and_score_completions": ("inputs",),
        "_generate_completions": ("samples",),
        "_encode_samples": ("samples",),
    }
    without = ("_compute_rewards_per_func",)
    decodes = True

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch("_generate_and_score_completions", lambda _, call: call.run())
        self.watch("_generate_completions", self._generate)
        self.watch("_encode_samples", self._encode)

    def begin(self) -> Sampling:
        now = Sampling(self.trainer, self.options, training=bool(self.trainer.model.training))
        now.decoder, now.group_size = self.decoder, 1
        return now

    def _generate(self, now: Sampling, call: Call) -> Any:
        now.expected = len(call.arguments["samples"])
        out = call.run()
        with self.guarded("take a snapshot of a generation"):
            now.see(out)
        return out

    def _encode(self, now: Sampling, call: Call) -> Any:
        out = call.run()
        with self.guarded("read the token ids that are trained on"):
            self._see_encoded(now, call.arguments["samples"], out[0])
        return out

    def _see_encoded(self, now: Sampling, samples: Sequence[Any], encoded: Mapping[str, Any]) -> None:
        known = {one.request: one for one in now.taken}
        mask = encoded.get("attention_mask")
        if not known or mask is None or tuple(mask.shape) != tuple(encoded["labels"].shape):
            return  # the rows are packed into one
        columns = [unpadded(encoded[name], mask) for name in ("input_ids", "labels")]
        for sample, ids, labels in zip(samples, *columns, strict=True):
            known[sample.request_id].see_encoded({"input_ids": ids, "labels": labels})

    def batch(self, now: Sampling) -> Batch:  # type: ignore[override]  # `begin` makes no others
        return batch_of(now, partial(built, now))


def _places(now: Sampled, wanted: int) -> dict[tuple[int, int], int]:
    """Where each sample of all ranks stands among those that are trained on, as dynamic sampling chooses them.

    It takes groups with a spread, sampling after sampling, until the batch is full; if it never is, the first sampling
    is trained on as it is.
    """
    spread = [(n, i) for n, stds in enumerate(now.spreads) for i, std in enumerate(stds) if std > 0]
    if now.spreads and len(spread) >= wanted:
        return {which: place for place, which in enumerate(spread[:wanted])}
    first = now.samplings[0]
    return {(0, i): i for i in range(first.count * first.world)}


def _why_not(now: Sampled, number: int, i: int) -> str:
    is_flat = number < len(now.spreads) and i < len(now.spreads[number]) and not now.spreads[number][i] > 0
    return NO_SPREAD if is_flat else LEFT_OVER


class SwiftHost(TRLHost):
    """Known by its methods: its class has the name of TRL's."""

    def matches(self, trainer: Any) -> bool:
        return not self.missing(trainer)


GRPO = SwiftHost(
    "ms-swift",
    SwiftObserver,
    (
        Support(
            trainer="swift.GRPOTrainer", advantage=True, groups=True, evaluation=True, images=True, tools=True,
            logprobs="sampler", since="ms-swift 4.6",
            note="what dynamic sampling throws away is marked; earlier turns are decoded from token ids",
        ),
    ),
)  # fmt: skip
GKD = SwiftHost(
    "ms-swift",
    SwiftGKDObserver,
    (
        Support(
            trainer="swift.GKDTrainer", rewards="none", evaluation=True, images=True, tools=True, logprobs="sampler",
            since="ms-swift 4.6", note="the dataset's own answers are not rollouts",
        ),
    ),
)  # fmt: skip
