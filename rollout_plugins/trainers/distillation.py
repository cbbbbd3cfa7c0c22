"""The host of TRL's DistillationTrainer and ServerDistillationTrainer.

`_generate` takes the prompts as messages and returns token ids as plain lists. Completions are messages only if
`_tool_call_loop` created them; otherwise the ids are decoded on the worker thread. These trainers have no rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rollout_hookspecs import Emit, Support

from rollout_plugins.hosts.kit.observe_generation import Needs, Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.wrapping import Call


class DistillationObserver(Observer):
    decodes = True
    needs: ClassVar[Needs] = {"_generate_and_score_completions": ("inputs",), "_generate": ("prompts",)}
    without = ("reward_funcs", "_calculate_rewards")  # the functions may not be set yet

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.watch("_generate_and_score_completions", self._around_generation)
        self.watch("_generate", self._around_generate)
        self.watch("_tool_call_loop", self.tool_loop, optional=True)

    def _around_generation(self, generation: Generation, call: Call) -> Any:
        self.store_rows(generation, call)
        return call.run()

    def _around_generate(self, generation: Generation, call: Call) -> Any:
        """Take a snapshot after the call: the trainer copies the prompts before its tools add to them."""
        out = call.run()
        with self.guarded("take a snapshot of a generation"):
            generation.prompt_ids, ids = out[0], out[1]
            generation.snapshot(generation.rows, call.arguments["prompts"], generation.tool_loop_completions, ids)
        return out


HOST = TRLHost(
    "distillation",
    DistillationObserver,
    (
        Support(
            trainer="DistillationTrainer", messages="decoded completions", rewards="none", tools=True, images=True,
            evaluation=True, since="1.10",
            note="tools since 1.14; with them, completions are the trainer's own messages",
        ),
        Support(
            trainer="ServerDistillationTrainer", messages="decoded completions", rewards="none", evaluation=True,
            since="1.10",
        ),
    ),
)  # fmt: skip
