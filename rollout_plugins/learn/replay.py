"""Train a stored step again: the same rollouts, in the same micro-batches, by a real GRPOTrainer.

How equal the result is depends on what is there, and is always said:

- *same rollouts*: ids, masks, advantages and log-probabilities are those that were recorded. Always.
- *close*: loss and gradient norm agree with the logged ones within 1e-5. Needs the step's checkpoint.
- *bit-equal*: they are the same numbers. Needs also the machine and the versions of the run.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_plugins.errors import RunError, need
from rollout_plugins.learn.find_fault import Fault, find_smallest_set
from rollout_plugins.learn.step_batches import StepBatch, read_step

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

SAME, CLOSE, EQUAL = "same rollouts", "close", "bit-equal"
TOLERANCE = 1e-5
_OURS = {
    "report_to": [], "save_strategy": "no", "eval_strategy": "no", "logging_steps": 1, "max_steps": 1,
    "disable_tqdm": True, "use_vllm": False, "log_completions": False, "num_train_epochs": 1, "learning_rate": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class RolloutLoss:
    """What one rollout contributes to the loss of its step."""

    id: str
    reward: float | None
    advantage: float | None
    tokens: int
    """Number of completion tokens, results of tools included."""
    loss: float
    grad_norm: float | None = None
    """The norm of its own gradient; only measured when a fault is looked for."""


@dataclass
class Replayed:
    """The result of a replay."""

    step: int
    loss: float
    grad_norm: float
    recorded_loss: float | None
    recorded_grad_norm: float | None
    tier: str
    """`same rollouts`, `close` or `bit-equal`."""
    micro_batches: int
    rollouts: list[RolloutLoss]
    notes: list[str] = field(default_factory=list)
    """What keeps the replay from being more equal, in a sentence each."""
    fault: str = ""
    """What was looked for with `bisect`."""
    culprits: list[str] = field(default_factory=list)
    """Ids of a smallest set of rollouts that shows the fault."""
    also: list[str] = field(default_factory=list)
    """Ids of other rollouts that show it each by itself."""


def replay(
    run: StoredRun,
    step: int,
    checkpoint: str | Path | None = None,
    *,
    model: Any = None,
    bisect: str | None = None,
    progress: Callable[[str, int, int], object] = lambda *_: None,
    **config: Any,
) -> Replayed:
    """Train a step of a run again, and return its loss, its gradient norm and the loss of each rollout.

    checkpoint: the folder of the checkpoint that was saved before the step: `checkpoint-<step - 1>`; for the first
        step, the folder or name of the model that training started from.
    model: a loaded model instead of a checkpoint.
    bisect: `nan` or `grad>10`: find a smallest set of rollouts with that fault.
    config: options of `GRPOConfig` in place of the recorded ones.
    """
    fault = Fault.parse(bisect) if bisect else None
    _check_trainer(run)
    batch = read_step(run, step)
    need("torch")
    need("trl", "trl")
    notes = [] if batch.has_order else ["the order of the micro-batches was not recorded"]
    progress("loading the model", 0, 0)
    loaded = model if model is not None else _load_model(checkpoint, run.info.settings)
    if model is None:
        notes += _checkpoint_notes(Path(str(checkpoint)), step)
    with tempfile.TemporaryDirectory(prefix="rollouts-replay-") as folder:
        trainer = _make_trainer(run, batch, loaded, checkpoint, folder, config)
        progress("training the step", 0, 0)
        trainer.train()
        loss, grad_norm = float(trainer.step_logs["loss"]), float(trainer.step_logs["grad_norm"])
        replayed = Replayed(step, loss, grad_norm, None, None, SAME, 0, [], notes)
        if trainer.beta != 0.0 and any(one.tokens.reference_logprobs is None for one in batch.rollouts):  # type: ignore[union-attr]
            notes.append("the log-probabilities of the reference model were not recorded; the checkpoint's are used")
        replayed.micro_batches = sum(len(generation.micro_batches) for generation in batch.generations)
        _compare(run, replayed)
        _measure(trainer, batch, replayed, fault, progress)
    return replayed


def _check_trainer(run: StoredRun) -> None:
    trainer = run.info.trainer
    if run.info.host != "grpo" or "RLOO" in trainer:
        raise RunError(f"{run.place} was trained by {trainer or 'a loop of its own'}; only GRPO can be replayed")


def _load_model(checkpoint: str | Path | None, settings: Mapping[str, Any]) -> Any:
    if checkpoint is None:
        raise RunError("name the checkpoint that was saved before the step (checkpoint=, --checkpoint)")
    if (Path(checkpoint) / "adapter_config.json").exists():
        raise RunError(f"{checkpoint} holds an adapter; load the model with it, and pass it as model=")
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, str(settings.get("model_dtype", "float32")))
    try:
        return AutoModelForCausalLM.from_pretrained(str(checkpoint), dtype=dtype)
    except (OSError, ValueError) as error:
        raise RunError(f"no model could be loaded from {checkpoint}: {str(error).splitlines()[0]}") from error


def _checkpoint_notes(checkpoint: Path, step: int) -> list[str]:
    """Return how the checkpoint differs from that of the step."""
    try:
        saved_at = int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, KeyError):
        saved_at = 0  # a model that training started from
    if saved_at == step - 1:
        return []
    return [f"{checkpoint} holds the weights of step {saved_at}, and step {step} starts from those of step {step - 1}"]


def _make_trainer(  # noqa: PLR0917 - all of them are what a trainer is made of
    run: StoredRun, batch: StepBatch, model: Any, checkpoint: Any, folder: str, config: Mapping[str, Any]
) -> Any:
    from transformers import AutoTokenizer, PrinterCallback
    from trl import GRPOConfig

    from rollout_plugins.learn.replay_trainer import ReplayTrainer

    info, settings = run.info, dict(run.info.settings)
    accepted = signature(GRPOConfig.__init__).parameters
    accumulation = int(settings.get("gradient_accumulation_steps") or 1)
    per_generation = int(settings.get("steps_per_generation") or accumulation)
    options = {name: value for name, value in settings.items() if name in accepted} | _OURS
    options |= {
        "output_dir": folder,
        "gradient_accumulation_steps": accumulation * batch.ranks,
        "steps_per_generation": per_generation * batch.ranks,
        "reward_weights": list(info.reward_weights) or None,
    }
    import torch

    if not torch.cuda.is_available():
        options |= {"use_cpu": True}
    args = GRPOConfig(**{**options, **config})
    rewards = [_named_reward(name) for name in info.reward_names or ("reward",)]
    from datasets import Dataset

    rows = Dataset.from_dict({"prompt": ["x"] * (args.generation_batch_size or 1)})
    source = checkpoint or model.config._name_or_path  # noqa: SLF001 - the attribute's public name
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source), padding_side="left")
    except (OSError, ValueError) as error:
        raise RunError(f"no tokenizer could be loaded from {source}: {str(error).splitlines()[0]}") from error
    trainer = ReplayTrainer(
        model, reward_funcs=rewards, args=args, train_dataset=rows, processing_class=tokenizer, step_batch=batch
    )
    trainer.remove_callback(PrinterCallback)  # what it prints would stand among our output
    if settings.get("use_vllm"):  # nothing is generated, but the correction for vLLM's own numbers applies
        trainer.use_vllm = True
    return trainer


def _named_reward(name: str) -> Callable[..., list[float]]:
    def reward(**_: Any) -> list[float]:
        raise AssertionError("reward functions must not be called in a replay, which uses the recorded rewards")

    reward.__name__ = name
    return reward


def _compare(run: StoredRun, replayed: Replayed) -> None:
    """Compare with what the trainer logged at the step, and say which tier that is."""
    logged = run.sql("select * from steps")
    names = set(logged.column_names)
    rows = [row for row in logged.to_pylist() if row["step"] == replayed.step] if "loss" in names else []
    every = run.info.settings.get("logging_steps", 1)
    if not rows or rows[0].get("loss") is None:
        replayed.notes.append("the trainer logged no loss at this step, so there is nothing to compare with")
        return
    if every != 1:
        replayed.notes.append(f"the logged loss is a mean over {every:g} steps, so it is not compared")
        return
    replayed.recorded_loss, replayed.recorded_grad_norm = rows[0]["loss"], rows[0].get("grad_norm")
    pairs = [(replayed.loss, replayed.recorded_loss)]
    if replayed.recorded_grad_norm is not None:
        pairs.append((replayed.grad_norm, replayed.recorded_grad_norm))
    if all(_is_same(a, b) for a, b in pairs):
        replayed.tier = EQUAL
    elif all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs):
        replayed.tier = CLOSE
    elif not replayed.notes:
        replayed.notes.append("loss or gradient norm differ by more than 1e-5, although all of it was recorded")


def _is_same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _measure(
    trainer: Any,
    batch: StepBatch,
    replayed: Replayed,
    fault: Fault | None,
    progress: Callable[[str, int, int], object],
) -> None:
    """Measure each rollout by itself, and find those with the fault."""
    rollouts = batch.rollouts
    measured = []
    for place in range(len(rollouts)):
        measured.append(trainer.measure([place], with_gradient=fault is not None))
        progress("measuring rollouts", place + 1, len(rollouts))
    replayed.rollouts = [
        RolloutLoss(one.id, one.reward, one.advantage, len(one.tokens.completion or ()), loss, norm)  # type: ignore[union-attr]
        for one, (loss, norm) in zip(rollouts, measured, strict=True)
    ]
    if fault is None:
        return
    replayed.fault = str(fault)
    culprits = find_smallest_set(fault, measured, lambda places: trainer.measure(places, with_gradient=True))
    replayed.culprits = [rollouts[place].id for place in culprits]
    if len(culprits) == 1:
        alone = [rollouts[place].id for place, one in enumerate(measured) if fault.is_in(one)]
        replayed.also = [ident for ident in alone if ident not in replayed.culprits]
    if len(replayed.also) + len(replayed.culprits) == len(rollouts) and len(rollouts) > 1 and fault.bound == math.inf:
        replayed.notes.append("every rollout shows it, so the weights are at fault rather than a rollout")
