"""The hosts of TRL's SDPOTrainer, SDFTTrainer and SSDTrainer, which learn from their own completions.

SDPO scores groups of completions like GRPO, in a method of another name; it logs no advantages, so they are read from
the device. SDFT has no rewards: `_generate` returns its completions as token ids, and the trainer's own event has the
prompts that they are really generated from. Before TRL 1.6, SDFT and SSD had other methods: `_generate_completion_ids`
gets those prompts, and `_build_buffered_batch` returns their token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollout_hookspecs import Emit, Support

from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.hosts.grpo import SCORED, GRPOObserver
from rollout_plugins.hosts.kit.decoding import unpadded
from rollout_plugins.hosts.kit.observe_generation import Needs, Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.wrapping import Call

_LOGPROBS = "the trainer has log-probabilities if it trains on completions for more than one step"


class SDPOObserver(GRPOObserver):
    generate_method = "_prepare_training_batch"
    needs: ClassVar[Needs] = {generate_method: ("inputs",), "_calculate_rewards": SCORED}


class SDFTObserver(Observer):
    decodes = True
    needs: ClassVar[Needs] = {"_prepare_training_batch": ("inputs",), "_generate": ("prompt_ids",)}
    without = ("_calculate_rewards",)

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch("_prepare_training_batch", self._around_generation)
        self.teaches = bool(getattr(trainer, "generate_from_teacher", False))
        if self.teaches:
            self.watch("_dispatch_self_distillation_callback", self._event)
        self.watch("_generate", self._around_generate)

    def _around_generation(self, generation: Generation, call: Call) -> Any:
        self.store_rows(generation, call)
        out = call.run()
        with self.guarded("read the log-probabilities"):
            generation.keep(old_per_token_logps=out.get("old_per_token_logps"))
        return out

    def _event(self, generation: Generation, call: Call) -> Any:
        with self.guarded("see the prompts of a generation"):
            if "generation_prompts" in call.kwargs:
                generation.built_prompts = Snapshot().copy(list(call.kwargs["generation_prompts"]))
        return call.run()

    def _around_generate(self, generation: Generation, call: Call) -> Any:
        out = call.run()
        with self.guarded("take a snapshot of a generation"):
            generation.prompt_ids = call.arguments["prompt_ids"]
            rows = generation.rows or [{} for _ in out[1]]
            prompts = generation.built_prompts or [None if self.teaches else row.get("prompt") for row in rows]
            _record(generation, prompts, out[1])
        return out


class BufferedObserver(Observer):
    decodes = True
    needs: ClassVar[Needs] = {"_build_buffered_batch": ("inputs",), "_generate_completion_ids": ("prompts",)}

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch("_build_buffered_batch", self._around_generation)
        self.watch("_generate_completion_ids", self._around_generate)

    def _around_generation(self, generation: Generation, call: Call) -> Any:
        self.store_rows(generation, call)
        out = call.run()
        with self.guarded("read the prompts' token ids"):
            generation.prompt_ids = self._prompt_ids(out)
            generation.keep(old_per_token_logps=out.get("old_per_token_logps"))
        return out

    def _prompt_ids(self, out: Mapping[str, Any]) -> list[list[int]]:
        if not getattr(self.trainer, "generate_from_teacher", False):
            return unpadded(out["prompt_ids"], out["prompt_mask"])
        width = out["teacher_input_ids"].shape[1] - out["completion_ids"].shape[1]
        return unpadded(out["teacher_input_ids"][:, :width], out["teacher_attention_mask"][:, :width])

    def _around_generate(self, generation: Generation, call: Call) -> Any:
        out = call.run()
        with self.guarded("take a snapshot of a generation"):
            _record(generation, call.arguments["prompts"], unpadded(*out))
        return out


def _record(generation: Generation, prompts: Sequence[Any], ids: Any) -> None:
    """Record the prompts that were really generated from; a row's own prompt becomes a column if it differs."""
    rows = generation.rows or [{} for _ in ids]
    generation.snapshot(rows, prompts, None, ids)
    for row, prompt, columns in zip(rows, prompts, generation.columns, strict=True):
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
            logprobs="trainer", since="1.6", note=_LOGPROBS,
        ),
    ),
)  # fmt: skip
BUFFERED = TRLHost(
    "self_distillation",
    BufferedObserver,
    (
        Support(
            trainer="SDFTTrainer", messages="decoded completions", rewards="none", groups=True, logprobs="trainer",
            since="1.0", until="1.5", note="up to TRL 1.5, the trainer itself fails in evaluation",
        ),
        Support(
            trainer="SSDTrainer", messages="decoded completions", rewards="none", evaluation=True, since="1.2",
            until="1.9", note="completions that are too short to be trained on are recorded too",
        ),
    ),
)  # fmt: skip
