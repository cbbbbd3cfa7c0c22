"""With the callback on, training computes exactly what it computes without."""

import random
from types import MethodType

import numpy as np
import pytest
import torch
from rig import GRPO, RLOO, call, dataset, half, make
from tools import multiply, slow
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run


def outcome(folder, cls, options, *, on):
    """Losses, weights and the state of every random stream after a training."""
    trainer = make(folder, cls=cls, max_steps=4, gradient_accumulation_steps=2, learning_rate=1e-3, **options)
    if on:
        trainer.add_callback(RolloutPluginCallback(["dedup", "cap", "redact", "console"], tokens=True, rendered=True))
    trainer.train()
    return {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "rewards": [entry.get("reward") for entry in trainer.state.log_history if "loss" in entry],
        "truth": [(row["prompt"], row["completion"], row["rewards"], row["advantage"]) for row in trainer.truth],
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
    }


#: Columns become arguments of reward functions, by these names.
NAMED = {name: [float(i) for i in range(8)] for name in ("self", "function", "index", "watch", "call", "name", "_")}


def by_column(completions, **columns):
    return [sum(values) + i for i, values in enumerate(zip(*map(columns.get, NAMED), strict=True))]


async def by_column_async(completions, **columns):
    return by_column(completions, **columns)


CASES = {
    "GRPO": (GRPO, {}),
    "GRPO with tools": (GRPO, {"script": [call("multiply", {"a": 2, "b": 3}), call("slow", {"x": 1}), "no"], "tools": [multiply, slow]}),
    "GRPO with calls that cannot be made": (GRPO, {"script": [call("multiply", "2 and 3"), call("slow", [1]), call("multiply", {"a": 2}), call("slow", 1)], "tools": [multiply, slow], "max_completion_length": 600}),
    "GRPO with names of our own": (GRPO, {"script": [call("multiply", {"self": 1}), call("slow", {"self": 1}), "no"], "tools": [multiply, slow], "max_completion_length": 600, "rewards": [by_column, by_column_async], "rows": dataset(8, **NAMED)}),
    "GRPO with iterations": (GRPO, {"num_iterations": 2, "rewards": [half, lambda completions, **k: [0.1, None, 0.3, float("nan")] * (len(completions) // 4)]}),
    "RLOO": (RLOO, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.needs(part="redact")
def test_training_is_bit_identical_with_and_without(tmp_path, name, capsys):
    cls, options = CASES[name]
    without = outcome(tmp_path / "a", cls, dict(options), on=False)
    with_it = outcome(tmp_path / "b", cls, dict(options), on=True)
    assert any(value != 0.0 for value in without["losses"])
    for key, value in without.items():
        if key == "weights":
            assert all(torch.equal(value[name], with_it[key][name]) for name in value)
        elif key == "torch":
            assert torch.equal(value, with_it[key])
        else:
            assert repr(value) == repr(with_it[key])


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("when", ["before training", "while it trains"])
def test_a_method_that_a_class_gets_after_the_callback_came_is_the_one_that_runs(tmp_path, when, others):
    class Edited(GRPO):
        pass

    def tripled(self, inputs, prompts, completions, completion_ids_list):
        return 3 * GRPO._calculate_rewards(self, inputs, prompts, completions, completion_ids_list)

    class Edits(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            Edited._calculate_rewards = tripled

    others = [RolloutPluginCallback(dir=tmp_path / f"other-{i}") for i in range(others)]
    trainer = make(tmp_path, cls=Edited, max_steps=2, callbacks=[*others, RolloutPluginCallback()])
    for other in others:
        trainer.remove_callback(other)
    if when == "before training":
        Edited._calculate_rewards = tripled
    else:
        trainer.add_callback(Edits())
    trainer.train()
    means = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert means == ([1.5, 1.5] if when == "before training" else [0.5, 1.5])
    stored = list(open_run(tmp_path / "out").rollouts())
    assert [sum(r.reward for r in stored if r.step == step) / 4 for step in (1, 2)] == means
    assert [r.rewards for r in stored] == [{"half": 0.0}, {"half": 1.0}] * 4


def test_a_method_that_is_taken_apart_and_bound_anew_is_still_watched(tmp_path):
    trainer = make(tmp_path, max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    for name in ("_generate_and_score_completions", "_calculate_rewards", "_generate", "log"):
        method = getattr(trainer, name)
        assert method.__self__ is trainer
        setattr(trainer, name, MethodType(method.__func__, trainer))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in trainer.truth]
    assert run.health.drops == {}
