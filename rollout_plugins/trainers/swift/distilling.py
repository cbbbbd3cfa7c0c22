"""The host of ms-swift's GKD trainer, whose student answers some prompts; others have the dataset's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from rollout_hookspecs import Batch, Emit, Support

from rollout_plugins.hosts.kit.build_rollouts import batch_of
from rollout_plugins.hosts.kit.decoding import unpadded
from rollout_plugins.hosts.kit.observe_generation import Needs, Observer
from rollout_plugins.hosts.kit.wrapping import Call
from rollout_plugins.trainers.swift.building import Sampling, built
from rollout_plugins.trainers.swift.requests import Requests, SwiftHost, see_turn


class SwiftGKDObserver(Observer):
    """Observes a trainer whose student answers a batch of prompts, or which takes the dataset's answers."""

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
        self._requests = Requests()
        self.watch("_generate_completions", self._generate)
        self.watch("_encode_samples", self._encode)
        self.watch("_rollout", partial(see_turn, self, self._requests), ("samples",), optional=True)

    def begin(self) -> Sampling:
        generation = Sampling(self.trainer, self.options, training=self.is_training)
        generation.decoder, generation.group_size = self.decoder, 1
        return generation

    def _generate(self, generation: Sampling, call: Call) -> Any:
        generation.expected = len(call.arguments["samples"])
        out = call.run()
        with self.guarded("take a snapshot of a generation"):
            generation.see(out, prompt_sizes=self._requests.prompt_sizes)
            self._requests.forget(sample.request for sample in generation.taken)
        return out

    def _encode(self, generation: Sampling, call: Call) -> Any:
        out = call.run()
        with self.guarded("read the token ids that are trained on"):
            self._see_encoded(generation, call.arguments["samples"], out[0])
        return out

    def _see_encoded(self, generation: Sampling, samples: Sequence[Any], encoded: Mapping[str, Any]) -> None:
        samples_by_request = {sample.request: sample for sample in generation.taken}
        mask = encoded.get("attention_mask")
        if not samples_by_request or mask is None or tuple(mask.shape) != tuple(encoded["labels"].shape):
            return  # the rows are packed into one
        columns = [unpadded(encoded[name], mask) for name in ("input_ids", "labels")]
        for sample, ids, labels in zip(samples, *columns, strict=True):
            samples_by_request[sample.request_id].see_encoded({"input_ids": ids, "labels": labels})

    def submit(self, generation: Sampling) -> None:  # type: ignore[override]  # `begin` makes no others
        if generation.error and not generation.count:
            with self.guarded("keep what was generated before the error"):
                generation.see(self._requests.answered(generation), prompt_sizes=self._requests.prompt_sizes)
                self._requests.forget(sample.request for sample in generation.taken)
        super().submit(generation)

    def batch(self, generation: Sampling) -> Batch:  # type: ignore[override]  # `begin` makes no others
        return batch_of(generation, partial(built, generation))


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
