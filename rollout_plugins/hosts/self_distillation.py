"""TRL's SDPOTrainer and SDFTTrainer, which learn from themselves with more in the prompt.

SDPO scores groups of completions as GRPO does, in a method of another name; its advantages are in no log, and are
read from the device. SDFT has no rewards: `_generate` returns its completions as token ids, and the trainer's own
event tells which prompts they are really generated from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rollout_hookspecs import Emit

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.grpo import SCORED, GRPOObserver
from rollout_plugins.hosts.kit.generation import Generation
from rollout_plugins.hosts.kit.observing import Needs, Observer
from rollout_plugins.hosts.kit.support import Support, TRLHost
from rollout_plugins.hosts.kit.wrapping import Call

_LOGPROBS = "the trainer has log-probabilities where completions train more than one step"


class SDPOObserver(GRPOObserver):
    whole = "_prepare_training_batch"
    needs: ClassVar[Needs] = {whole: ("inputs",), "_calculate_rewards": SCORED}


class SDFTObserver(Observer):
    decodes = True
    needs: ClassVar[Needs] = {"_prepare_training_batch": ("inputs",), "_generate": ("prompt_ids",)}
    without = ("_calculate_rewards",)

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch("_prepare_training_batch", self._whole)
        self.teaches = bool(getattr(trainer, "generate_from_teacher", False))
        if self.teaches:
            self.watch("_dispatch_self_distillation_callback", self._event)
        self.watch("_generate", self._generate)

    def _whole(self, now: Generation, call: Call) -> Any:
        self.given(now, call)
        out = call.run()
        with self.guarded("read the log-probabilities"):
            now.keep(old_per_token_logps=out.get("old_per_token_logps"))
        return out

    def _event(self, now: Generation, call: Call) -> Any:
        with self.guarded("see the prompts of a generation"):
            if "generation_prompts" in call.kwargs:
                now.asked = Snapshot().copy(list(call.kwargs["generation_prompts"]))
        return call.run()

    def _generate(self, now: Generation, call: Call) -> Any:
        out = call.run()
        with self.guarded("take a snapshot of a generation"):
            now.prompt_ids = call.arguments["prompt_ids"]
            self._record(now, out[1])
        return out

    def _record(self, now: Generation, ids: Any) -> None:
        """The prompt is what was really generated from; the row's own stays beside it where it is another."""
        rows = list(now.rows) or [{} for _ in ids]
        prompts = now.asked or [None if self.teaches else row.get("prompt") for row in rows]
        now.snapshot(rows, prompts, None, ids)
        for row, prompt, columns in zip(rows, prompts, now.columns, strict=True):
            if "prompt" in row and row["prompt"] != prompt:
                columns["prompt"] = Snapshot().copy(row["prompt"])


SDPO = TRLHost(
    "sdpo",
    SDPOObserver,
    (
        Support(
            trainer="SDPOTrainer", advantage=True, groups=True, evaluation=True, logprobs="trainer", since="1.0",
            note=_LOGPROBS,
        ),
    ),
)  # fmt: skip
SDFT = TRLHost(
    "sdft",
    SDFTObserver,
    (
        Support(
            trainer="SDFTTrainer", messages="decoded completions", rewards="none", groups=True, evaluation=True,
            logprobs="trainer", since="1.10", note=_LOGPROBS,
        ),
    ),
)  # fmt: skip
