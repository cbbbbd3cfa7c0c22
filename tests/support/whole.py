"""A training with GRPO or RLOO, and that its run is what the trainer had."""

import pytest
from rig import make
from strict import same

from rollout_plugins import RolloutPluginCallback, open_run


def train(folder, *args, callback=None, **kwargs):
    trainer = make(folder, *args, **kwargs)
    trainer.add_callback(callback or RolloutPluginCallback())
    trainer.train()
    return trainer, open_run(folder / "out")


def assert_whole(trainer, run, split="train"):
    """What is stored is what the trainer had: all of it, in order, types included."""
    truth = [row for row in trainer.truth if row["split"] == split]
    stored = list(run.rollouts(split=split))
    assert len(stored) == len(truth) > 0
    for rollout, row in zip(stored, truth, strict=True):
        if rollout.prompt_is_text:
            assert rollout.prompt == ({"role": "user", "content": row["prompt"]},)
        else:
            assert same(list(rollout.prompt), row["prompt"])
        if rollout.completion_is_text:
            assert rollout.completion == ({"role": "assistant", "content": row["completion"]},)
        else:
            assert same(list(rollout.completion), row["completion"])
        assert rollout.policy_step == row["policy_step"]
        assert rollout.advantage == pytest.approx(row["advantage"])
        numbers = [float("nan") if value is None else value for value in rollout.rewards.values()]
        assert numbers == pytest.approx(row["rewards"], nan_ok=True)
        assert same(dict(rollout.columns), {k: v for k, v in row["row"].items() if k != "prompt"})
    assert len({rollout.id for rollout in stored}) == len(stored)
