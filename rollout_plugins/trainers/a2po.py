"""The host of TRL's A2POTrainer, in both of its stages.

Before training, the trainer samples several completions of each prompt from the reference model to estimate the value
of the prompt: these rollouts have step 0 and the mark `stage: value estimation`. In training, each prompt gets one
completion, and its advantage is its reward minus that estimate, read from the device as one number per rollout.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from rollout_hookspecs import Emit, Support

from rollout_plugins.hosts.kit.decoding import unpadded
from rollout_plugins.hosts.kit.observe_generation import Needs, Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.wrapping import Call, logger

FIRST_STAGE = {"stage": "value estimation"}
_seen_estimating: weakref.WeakSet[Any] = weakref.WeakSet()


class A2POObserver(Observer):
    needs: ClassVar[Needs] = {
        "_estimate_optimal_values": (),
        "_calculate_rewards": ("prompts", "completions", "**reward_kwargs"),
    }

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.estimating = False
        self.wraps.wrap(trainer, "_estimate_optimal_values", self._estimate)
        self.watch("_prepare_inputs", self._prepare, ("inputs",))
        self.watch("_calculate_rewards", self._rewards)
        if getattr(trainer, "_optimal_values", None) is not None and trainer not in _seen_estimating:
            logger.warning(
                "A2PO's first stage ended before the callback was attached; to record it, pass callbacks=[callback]"
            )

    def _estimate(self, call: Call) -> Any:
        """Run the first stage, in which each scored batch is a generation, even while another one is
        being prepared.
        """
        outer, self.current, self.estimating = self.current, None, True
        _seen_estimating.add(self.trainer)
        try:
            return call.run()
        finally:
            self.current, self.estimating = outer, False

    def begin(self) -> Generation:
        if not self.estimating:
            return super().begin()
        generation = Generation(self.trainer, self.options, training=True)
        generation.step = generation.policy_step = 0
        generation.group_size = int(self.trainer.args.num_value_samples)
        return generation

    def _prepare(self, generation: Generation, call: Call) -> Any:
        self.store_rows(generation, call)
        out = call.run()
        with self.guarded("read the advantages"):
            generation.advantages = (out["rewards"] - out["v_star"]).tolist()
            if self.options.get("tokens") or self.options.get("rendered"):
                self._keep_ids(generation, out)
        return out

    def _rewards(self, generation: Generation, call: Call) -> Any:
        with self.guarded("take a snapshot of a generation"):
            given = call.arguments
            prompts, columns = given["prompts"], given["reward_kwargs"]
            rows = [{name: values[i] for name, values in columns.items()} for i in range(len(prompts))]
            generation.snapshot(rows, prompts, given["completions"])
            generation.marks = [FIRST_STAGE if self.estimating else {} for _ in prompts]
        return self.run_rewards(generation, call)

    def _keep_ids(self, generation: Generation, out: Mapping[str, Any]) -> None:
        length = int(out["logits_to_keep"])
        ids, mask = (out[name].detach().to("cpu", copy=True) for name in ("input_ids", "attention_mask"))

        def unpack() -> None:
            generation.prompt_ids = unpadded(ids[:, :-length], mask[:, :-length])
            generation.answer(unpadded(ids[:, -length:], mask[:, -length:]))

        generation.later.append(unpack)


HOST = TRLHost(
    "a2po",
    A2POObserver,
    (
        Support(
            trainer="A2POTrainer", advantage=True, evaluation=True, lengths="with tokens=True", since="1.6",
            note="the first stage is recorded too, in groups, without advantages and tokens; pass the callback in "
            "callbacks=[…], since no event comes before it",
        ),
    ),
)  # fmt: skip
