"""A GRPOTrainer whose generations are stored rollouts. Everything else that it computes is TRL's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rollout_hookspecs import Rollout
from trl import GRPOTrainer

from rollout_plugins.learn.step_batches import GenerationBatch, StepBatch

#: By loss type, what a rollout's own loss has to be divided by to be its share of the loss of its micro-batch.
_BY_ROWS = frozenset({"grpo", "sapo", "luspo", "dr_grpo"})
_BY_TOKENS = frozenset({"bnpo"})


class _NoUpdate(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer that leaves the weights as they are, also where gradients are NaN."""

    def step(self, closure: Any = None) -> None:
        return None


class ReplayTrainer(GRPOTrainer):  # type: ignore[misc]
    """Trains one step on stored rollouts, and leaves the weights as they are."""

    def __init__(self, *args: Any, step_batch: StepBatch, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._step_batch = step_batch
        self._replayed: Sequence[Rollout] = ()
        self._micro_batches: list[dict[str, Any]] = []
        self.step_logs: dict[str, float] = {}

    def create_optimizer(self, *_: Any, **__: Any) -> Any:
        self.optimizer: Any = _NoUpdate(self.model.parameters(), lr=0.0)
        return self.optimizer

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            self.step_logs = dict(logs)
        super().log(logs, *args, **kwargs)

    # --- generations from the store -----------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not self._micro_batches:
            for generation in self._step_batch.generations:
                self._micro_batches += self._read_generation(generation)
        number: int = self._step
        return self._micro_batches[number % len(self._micro_batches)]

    def _read_generation(self, generation: GenerationBatch) -> list[dict[str, Any]]:
        """Return the micro-batches of a generation, scored by the trainer as those of a real one are."""
        self._replayed = generation.rollouts
        rows = [{**one.columns, "prompt": _prompt(one)} for one in generation.rollouts]
        out = self._generate_and_score_completions(rows)
        self._put_recorded(out, generation.rollouts)
        return [_rows_of(out, places) for places in generation.micro_batches]

    def _generate(self, prompts: Any) -> tuple[Any, ...]:
        tokens = [one.tokens for one in self._replayed]
        assert all(tokens)
        masks = [list(one.mask) if one.mask is not None else [1] * len(one.completion) for one in tokens]  # type: ignore[union-attr,arg-type]
        has_tools = any(0 in mask for mask in masks)
        logprobs = [one.logprobs for one in tokens]  # type: ignore[union-attr]
        sampled = [list(one) for one in logprobs if one is not None]
        return (
            [list(one.prompt) for one in tokens],  # type: ignore[union-attr,arg-type]
            [list(one.completion) for one in tokens],  # type: ignore[union-attr,arg-type]
            masks if has_tools else None,
            [list(one.completion) for one in self._replayed],
            sampled if len(sampled) == len(logprobs) else None,
            {},
            None,
            [],
        )

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rows = [[one.rewards.get(name) for name in self.reward_func_names] for one in self._replayed]
        numbers = [[float("nan") if value is None else value for value in row] for row in rows]
        return torch.tensor(numbers, dtype=torch.float32, device=self.accelerator.device)

    def _put_recorded(self, out: dict[str, Any], rollouts: Sequence[Rollout]) -> None:
        """Put what the trainer computed with weights of the past in place of what it computes with these."""
        device = self.accelerator.device
        advantages = [one.advantage for one in rollouts]
        if None not in advantages:
            out["advantages"] = torch.tensor(advantages, dtype=torch.float32, device=device)
        for name, field in (
            ("old_per_token_logps", "trainer_logprobs"),
            ("ref_per_token_logps", "reference_logprobs"),
        ):
            recorded = [getattr(one.tokens, field) for one in rollouts]
            if name in out and all(values is not None for values in recorded):
                for row, values in enumerate(recorded):
                    out[name][row, : len(values)] = torch.tensor(list(values), dtype=out[name].dtype, device=device)

    # --- the loss of some rollouts ------------------------------------------------------------------------------

    def measure(self, places: Sequence[int], *, with_gradient: bool) -> tuple[float, float | None]:
        """Return the loss that these rollouts of the step contribute, and the norm of their gradient.

        places: of the rollouts in `StepBatch.rollouts`.
        """
        rows = [(batch, row) for batch in self._micro_batches for row in range(len(batch["advantages"]))]
        self.model.zero_grad(set_to_none=True)
        total = 0.0
        with torch.set_grad_enabled(with_gradient):
            for place in places:
                batch, row = rows[place]
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(self.model, _rows_of(batch, [row])) * self._share(batch, row)
                if with_gradient:
                    loss.backward()
                total += float(loss.detach())
        if not with_gradient:
            return total, None
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        self.model.zero_grad(set_to_none=True)
        return total, norm

    def _share(self, batch: dict[str, Any], row: int) -> float:
        """Return the weight of a rollout's own loss in the loss of its micro-batch."""
        if self.loss_type in _BY_ROWS:
            return 1.0 / len(batch["advantages"])
        if self.loss_type in _BY_TOKENS:
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            return float(mask[row].sum().clamp(min=1.0) / mask.sum().clamp(min=1.0))
        return 1.0


def _prompt(rollout: Rollout) -> Any:
    return rollout.prompt[0]["content"] if rollout.prompt_is_text else list(rollout.prompt)


def _rows_of(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return some rows of a batch; numbers that belong to the whole batch stay."""
    return {name: value[list(rows)] if getattr(value, "ndim", 0) else value for name, value in batch.items()}
