"""A real GRPOTrainer whose generations are given: what it does around them, and what is recorded of them, is real."""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import torch
from rig import make
from trl import GRPOTrainer

from benchmarks.batches import GROUP, Batch


def search(query: str, limit: int) -> str:
    """
    Search.

    Args:
        query: text
        limit: most results
    """
    return query


def correct(completions: list[Any], **kwargs: Any) -> list[float]:
    return [row[0] for row in NOW[0].rewards]


def brief(completions: list[Any], **kwargs: Any) -> list[float]:
    return [row[1] for row in NOW[0].rewards]


NOW: list[Batch] = []


class Replayed(GRPOTrainer):
    """Gives the batch in place of a generation, in the order of calls in which the real methods do."""

    def begin(self) -> None:
        self.callback_handler.on_train_begin(self.args, self.state, self.control)

    def end(self) -> None:
        self.callback_handler.on_train_end(self.args, self.state, self.control)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = NOW[0]
        self._generate(batch.prompts)
        rewards = self._calculate_rewards(batch.inputs, batch.prompts, batch.completions, batch.ids)
        self._logs["prompt"].extend(batch.prompts)
        self._logs["completion"].extend(batch.completions)
        for i, name in enumerate(self.reward_func_names):
            self._logs["rewards"][name].extend(rewards[:, i].tolist())
        self._logs["advantages"].extend(batch.advantages)
        if batch.images:
            self._logs["images"].extend(batch.images)
        return {"advantages": torch.tensor(batch.advantages)}

    def _generate(self, prompts: Any) -> tuple[Any, ...]:
        mask = self._tool_call_loop(prompts)
        return NOW[0].prompt_ids, NOW[0].ids, mask

    def _tool_call_loop(self, prompts: Any) -> tuple[Any, ...]:
        for i, completion in enumerate(NOW[0].completions):
            for message in completion:
                for call in message.get("tool_calls", ()):
                    self._sync_tool_dicts[i][call["function"]["name"]](**call["function"]["arguments"])
        return (NOW[0].masks,)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        columns = [function(completions=completions) for function in self.reward_funcs]
        return torch.tensor(columns).T


def trainer(folder: Path) -> Replayed:
    """One step of it is never run; only what happens around a generation is."""
    sizes = {"num_generations": GROUP, "per_device_train_batch_size": GROUP}
    made = make(folder, cls=Replayed, rewards=[correct, brief], tools=[search], **sizes)
    Path(made.args.output_dir, "completions").mkdir(parents=True, exist_ok=True)
    return made


def load(made: Replayed, batch: Batch) -> None:
    """Have the trainer hold this batch, its log included."""
    NOW[:] = [batch]
    count = len(batch.prompts)
    made._sync_tool_dicts = [{"search": search} for _ in range(count)]
    made._async_tool_dicts = [{} for _ in range(count)]
    made._logs = {
        "prompt": deque(maxlen=count),
        "completion": deque(maxlen=count),
        "rewards": defaultdict(lambda: deque(maxlen=count)),
        "advantages": deque(maxlen=count),
        "extra": defaultdict(lambda: deque(maxlen=count)),
        "images": deque(maxlen=count),
    }
    made._generate_and_score_completions(batch.inputs)
