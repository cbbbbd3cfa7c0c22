"""Rewards and advantages are those that TRL computes, from the same raw values."""

import math

import numpy as np
import pytest
from rig import GRPO, RLOO, dataset, make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.learn.advantages import Formula, advantages, formula_of, total_rewards


def odd(completions, **kwargs):
    """Some rollouts without a score, and all of the first group."""
    return [None if i in {0, 1, 5} else float((7 * i) % 5) / 3 for i in range(len(completions))]


def even(completions, **kwargs):
    """All of the first group without a score, and one group without spread."""
    return [None if i < 2 else float(i // 4) for i in range(len(completions))]


CASES = {
    "group": (GRPO, {"scale_rewards": "group"}),
    "batch": (GRPO, {"scale_rewards": "batch"}),
    "none": (GRPO, {"scale_rewards": "none", "loss_type": "dr_grpo"}),
    "gdpo": (GRPO, {"multi_objective_aggregation": "normalize_then_sum"}),
    "rloo": (RLOO, {"beta": 0.0}),
    "rloo normalised": (RLOO, {"beta": 0.0, "normalize_advantages": True}),
    "rloo clipped": (RLOO, {"beta": 0.0, "reward_clip_range": (-0.5, 0.7)}),
}


@pytest.mark.parametrize("group_size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_trls_own_method(tmp_path, case, group_size):
    cls, options = CASES[case]
    trainer = make(
        tmp_path, cls=cls, rewards=[odd, even], reward_weights=[0.25, 2.0], rows=dataset(8), max_steps=2,
        num_generations=group_size, per_device_train_batch_size=8,
        callbacks=[RolloutPluginCallback(dir=tmp_path / "runs")], **options,
    )  # fmt: skip
    trainer.train()
    run = open_run(tmp_path / "runs")
    rollouts = list(run)
    assert len(rollouts) == 16
    nan = math.nan
    values = [[nan if value is None else value for value in one.rewards.values()] for one in rollouts]
    batches = [one.generation for one in rollouts]
    groups = [100 * one.generation + one.group for one in rollouts]
    formula = formula_of(run.info)
    assert formula.name.casefold() == case.partition(" ")[0].replace("group", "grpo").replace("batch", "grpo").replace(
        "none", "grpo"
    )
    found = advantages(values, run.info.reward_weights, groups, batches, formula)
    assert found == pytest.approx([one.advantage for one in rollouts], abs=2e-6, rel=2e-5)
    assert np.any(found != 0)
    totals = total_rewards(values, run.info.reward_weights)
    assert [None if math.isnan(total) else total for total in totals] == pytest.approx(
        [one.reward for one in rollouts]
    )


def test_a_formula_can_be_named():
    assert str(Formula()) == "GRPO with scale_rewards='group'"
    assert str(Formula("RLOO", normalize=True)) == "RLOO with normalize_advantages"
