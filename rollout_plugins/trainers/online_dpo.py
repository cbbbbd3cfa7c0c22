"""The host of TRL's OnlineDPOTrainer, which generates two completions of each prompt and prefers the better one.

The trainer stores them in two halves; here the two completions of a prompt are adjacent, as one group. Their rewards
are read at the end of the step, because the trainer subtracts a penalty for a missing end token from them: two small
reads from the device per step, after the trainer has read numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollout_hookspecs import Emit, Support

from rollout_plugins.hosts.kit.decoding import eos_ids, unpadded
from rollout_plugins.hosts.kit.observe_generation import Needs, Observer
from rollout_plugins.hosts.kit.observed_generation import Generation
from rollout_plugins.hosts.kit.support import TRLHost
from rollout_plugins.hosts.kit.trainer_facts import describe_trl
from rollout_plugins.hosts.kit.wrapping import Call


class OnlineDPOObserver(Observer):
    answers_each = 2
    needs: ClassVar[Needs] = {
        "_calculate_rewards_from_functions": ("prompts", "completions", "completion_ids_list", "**reward_kwargs")
    }

    def __init__(self, trainer: Any, emit: Emit, options: Mapping[str, Any]) -> None:
        super().__init__(trainer, emit, options)
        self.eos_ids = eos_ids(trainer)
        self.compared: Any = None
        self.watch("training_step", self._step, ("model", "inputs"))
        self.watch("_calculate_rewards_from_functions", self._rewards)
        if options.get("tokens") or options.get("rendered"):
            self.watch("_generate", self._prompts, optional=True)
            self.watch("_generate_vllm", self._prompts, optional=True)

    def begin(self) -> Generation:
        generation = Generation(self.trainer, self.options, training=True)
        generation.group_size = 2
        return generation

    def _step(self, generation: Generation, call: Call) -> Any:
        with self.guarded("see the rows of a generation"):
            generation.expected = self.answers_each * len(call.arguments["inputs"]["prompt"])
        out = call.run()
        with self.guarded("read the rewards"):
            if generation.count:
                self._read_totals(generation)
        return out

    def _prompts(self, generation: Generation, call: Call) -> Any:
        out = call.run()
        with self.guarded("read the prompt's tokens"):
            ids, mask = out[0].detach().to("cpu", copy=True), out[1].detach().to("cpu", copy=True)

            def unpack() -> None:
                generation.prompt_ids = unpadded(ids, mask)

            generation.later.append(unpack)
        return out

    def _rewards(self, generation: Generation, call: Call) -> Any:
        with self.guarded("take a snapshot of a generation"):
            arguments = call.arguments
            rows = _rows(arguments["reward_kwargs"], len(arguments["prompts"]))
            ids = [self._without_padding(row) for row in arguments["completion_ids_list"]]
            generation.snapshot(rows, arguments["prompts"], arguments["completions"], ids)
            half = generation.count // 2
            generation.places = [2 * (i % half) + i // half for i in range(generation.count)]
        self.compared = self.run_rewards(generation, call)
        return self.compared

    def _without_padding(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids up to the end token: the trainer pads shorter completions."""
        ends = [ids.index(token) + 1 for token in self.eos_ids if token in ids]
        return ids[: min(ends, default=len(ids))]

    def _read_totals(self, generation: Generation) -> None:
        """Read the rewards that the trainer compared, and which completion it preferred."""
        generation.totals = totals = self.compared.tolist()
        half = generation.count // 2
        first_wins = [totals[i] >= totals[i + half] for i in range(half)]
        better = [*first_wins, *(not wins for wins in first_wins)]
        generation.marks = [{"preference": "chosen" if chosen else "rejected"} for chosen in better]


def _rows(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return columns as one row per completion. A value that is not a list belongs to the batch and is left out."""
    lists = {name: values for name, values in columns.items() if isinstance(values, (list, tuple))}
    per_completion = {name: values for name, values in lists.items() if len(values) == count}
    return [{name: values[i] for name, values in per_completion.items()} for i in range(count)]


class OnlineDPOHost(TRLHost):
    """The host of OnlineDPOTrainer."""

    def describe(self, trainer: Any) -> Mapping[str, Any]:
        return {**describe_trl(trainer), "num_generations": 2}


HOST = OnlineDPOHost(
    "online-dpo",
    OnlineDPOObserver,
    (
        Support(
            trainer="OnlineDPOTrainer", groups=True, images=True, lengths="completion",
            since="0.29", note="two completions of each prompt, marked as chosen or rejected",
        ),
    ),
)  # fmt: skip
