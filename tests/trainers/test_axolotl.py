"""A trainer that generates ahead as axolotl's does. `.ci/patched axolotl` runs the real one: patched_axolotl.py."""

import numpy as np
import pytest
from ahead import Ahead, Spied, assert_all_is_kept
from episodes import END, TOLD, between, heard, played, said, since_1
from rig import dataset, make
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run

ANSWERS = [f"answer number {n}" for n in range(64)]


def number(completions, **kwargs):
    return [int(completion[-1]["content"].split()[-1]) / 3 for completion in completions]


def picky(completions, **kwargs):
    return [None if i % 2 else 0.5 for i in range(len(completions))]


def spied(folder, script=ANSWERS, *, kind=None, callbacks=(), **config):
    return make(
        folder, script, cls=type("SpiedAhead", (Spied, Ahead), kind or {}), rows=dataset(8, level=list(range(8))),
        **{"rewards": [number, picky], "max_steps": 4, "callbacks": [*callbacks]} | config,
    )  # fmt: skip


def recorded(folder, *args, **config):
    """A finished training of four steps, and its run."""
    trainer = spied(folder, *args, callbacks=[RolloutPluginCallback(tokens=True)], **config)
    trainer.train()
    trainer.finish()
    return trainer, open_run(folder / "out")


KINDS = {"at once": {}, "in parts": {"in_parts": True}, "past the method": {"past_the_method": True}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_on_is_stored_with_its_own_advantage_and_the_rest_says_so(tmp_path, kind):
    trainer, run = recorded(tmp_path, kind=KINDS[kind])
    trained, rest = assert_all_is_kept(trainer, run)
    assert (len(trained), len(rest)) == ((8, 4) if kind == "in parts" else (16, 4))
    for rollout in trained:
        (said,) = rollout.completion
        (exact,) = number([[said]])
        assert rollout.rewards["number"] == (float(str(np.float32(exact))) if kind == "past the method" else exact)
        assert rollout.rewards["picky"] == [0.5, None][rollout.index % 2]
        assert rollout.extra["seconds_in_queue"] >= 0


def test_what_was_scored_and_never_given_out_was_not_trained_on(tmp_path):
    trainer, run = recorded(tmp_path, kind={"in_parts": True}, max_steps=3)
    trained, rest = assert_all_is_kept(trainer, run)
    assert len(trained) == 6
    assert [rollout.advantage is not None for rollout in rest] == [True] * 2 + [False] * 4


@pytest.mark.parametrize("steps", [4, 2])
def test_a_generation_is_handed_over_once_all_of_it_was_given_out(tmp_path, steps):
    """With two iterations, each micro-batch is given out twice; evaluation in between writes into the same log."""
    more = {"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 1}
    evaluates = {"eval_rows": dataset(4, level=[0] * 4), "eval_strategy": "steps", "eval_steps": 1}
    _, run = recorded(tmp_path, max_steps=steps, per_device_train_batch_size=2, **more, **evaluates)
    train = [rollout for rollout in run.rollouts() if rollout.split == "train"]
    assert len(train) == 4 + 4
    assert [rollout.marks["trained"] for rollout in train] == ["yes"] * 4 + ["no: left_over"] * 4
    assert [rollout.rewards["number"] for rollout in train] == [0.0, 1 / 3, 2 / 3, 1.0] + [None] * 4
    assert [rollout.rewards["picky"] for rollout in train] == [0.5, None] * 2 + [None] * 4


class BreaksOff(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise KeyboardInterrupt


def test_what_was_not_trained_on_when_training_breaks_off_says_so(tmp_path):
    callback = RolloutPluginCallback(tokens=True)
    trainer = spied(tmp_path, kind={"in_parts": True}, callbacks=[callback, BreaksOff()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.finish()
    make(tmp_path / "other", callbacks=[callback]).train()
    run = open_run(tmp_path / "out")
    assert [rollout.marks["trained"] for rollout in run.rollouts()] == ["yes"] * 4 + ["no: broke_off"] * 4
    assert (run.health.drops, run.health.untrained) == ({}, {"broke_off": 4})


def test_what_was_generated_before_the_callback_came_is_whole_too(tmp_path):
    trainer = spied(tmp_path, callbacks=())
    trainer.go_ahead()
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()
    trainer.finish()
    trained, _ = assert_all_is_kept(trainer, open_run(tmp_path / "out"))
    assert [rollout.policy_step for rollout in trained[:4]] == [0] * 4


@since_1
def test_what_a_function_plays_ahead_is_told_apart_and_its_fields_stay_out_of_the_columns(tmp_path):
    pieces = [("I look." + END, 1), (between("It is dark."), 0), ("answer number 3" + END, 1)]
    play = played([pieces], env_reward=lambda n: [i / 4 for i in range(n)], level=lambda n: ["its own"] * n)
    trainer, run = recorded(tmp_path, rollout_func=play, max_completion_length=200, rewards=[number])
    stored = list(run.rollouts(tokens=True))
    assert len(stored) == len(trainer.made) == 20
    for rollout, (_, step, prompt, _) in zip(stored, trainer.made, strict=True):
        assert rollout.completion == (said("I look."), heard("It is dark."), said("answer number 3"))
        assert rollout.marks["turns"] == TOLD["turns"]
        assert rollout.completion_tokens == sum(rollout.tokens.mask) < len(rollout.tokens.completion)
        assert (rollout.extra["env_reward"], rollout.extra["level"]) == (rollout.index % 4 / 4, "its own")
        assert [dict(message) for message in rollout.prompt] == prompt
        assert rollout.columns == {"level": int(prompt[0]["content"].split()[1])}
        assert rollout.policy_step == step
    assert [rollout.marks["trained"] for rollout in stored] == ["yes"] * 16 + ["no: left_over"] * 4
