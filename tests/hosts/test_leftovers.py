"""Rollouts that training ended before are told from those that were trained on."""

import pytest
from rig import GRPO, RLOO, dataset, make
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run

ANSWERS = [f"answer number {n}" for n in range(64)]
FOUR_STEPS = {"steps_per_generation": 4, "per_device_train_batch_size": 2, "num_generations": 2}
LEFT, TRAINED = {"trained": "no: left_over"}, {"trained": "yes"}


def trainer_in_parts(folder, *, cls=GRPO, **config):
    """A trainer that trains on a quarter of a batch in each step, and the token ids that it trained on."""
    trainer = make(folder, ANSWERS, cls=cls, rows=dataset(16), **FOUR_STEPS | config)
    prepare, taken = trainer._prepare_inputs, []

    def prepared(inputs):
        out = prepare(inputs)
        rows = zip(out["completion_ids"], out["completion_mask"], strict=True)
        taken.extend(tuple(ids[mask.bool()].tolist()) for ids, mask in rows)
        return out

    trainer._prepare_inputs = prepared
    return trainer, taken


def ids(rollout):
    return tuple(rollout.tokens.completion)


@pytest.mark.parametrize(
    ("config", "steps", "left"),
    [({}, 3, 2), ({"num_iterations": 2}, 3, 2), ({}, 4, 0), ({"num_iterations": 2}, 7, 0), ({"cls": RLOO}, 2, 4),
     ({"gradient_accumulation_steps": 2}, 3, 4), ({"max_steps": -1, "num_train_epochs": 0.3}, 5, 6)],
)  # fmt: skip
def test_what_training_ends_before_is_marked_and_counted(tmp_path, config, steps, left):
    trainer, taken = trainer_in_parts(tmp_path, **{"max_steps": steps, **config})
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()
    assert trainer.state.global_step == steps
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(tokens=True))
    assert [list(one.completion) for one in stored] == [row["completion"] for row in trainer.truth]
    assert {ids(one) for one in stored if one.marks.get("trained") != "no: left_over"} == set(taken)
    assert {ids(one) for one in stored if one.marks == LEFT} == {ids(one) for one in stored} - set(taken)
    assert (run.health.drops, run.health.untrained) == ({}, {"left_over": left} if left else {})
    assert all(one.advantage is not None and one.reward is not None for one in stored)


def test_only_the_batch_that_training_may_end_in_waits_for_it(tmp_path):
    seen = []

    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            assert callback.flush(600)
            seen.append(len(open_run(tmp_path / "out")))

    callback = RolloutPluginCallback()
    trainer, _ = trainer_in_parts(tmp_path, max_steps=6)
    for one in (callback, Looks()):
        trainer.add_callback(one)
    trainer.train()
    assert seen == [8] * 6
    run = open_run(tmp_path / "out")
    assert [one.marks for one in run.rollouts()][:8] == [{}] * 8
    assert sorted(one.marks["trained"] for one in list(run.rollouts())[8:]) == ["no: left_over"] * 4 + ["yes"] * 4


class Stops(TrainerCallback):
    """Ends training after its first step, in the way it is told to."""

    def __init__(self, error=None):
        self.error = error

    def on_step_end(self, args, state, control, **kwargs):
        if self.error is not None:
            raise self.error
        control.should_training_stop = True


@pytest.mark.parametrize(("error", "reason"), [(None, "left_over"), (KeyboardInterrupt(), "broke_off")])
def test_what_an_unplanned_end_leaves_over_is_counted(tmp_path, error, reason):
    callback = RolloutPluginCallback()
    trainer, _ = trainer_in_parts(tmp_path, max_steps=8)
    for one in (callback, Stops(error)):
        trainer.add_callback(one)
    if error is None:
        trainer.train()
    else:
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        make(tmp_path / "other", callbacks=[callback]).train()  # the callback's run ends where its next one begins
    run = open_run(tmp_path / "out")
    assert (len(run), run.health.drops, run.health.untrained) == (8, {}, {reason: 6})


def test_what_is_done_again_after_resuming_is_not_counted_twice(tmp_path):
    def start(*callbacks, **config):
        trainer, _ = trainer_in_parts(tmp_path, save_strategy="steps", save_steps=2, **config)
        for one in (RolloutPluginCallback(), *callbacks):
            trainer.add_callback(one)
        return trainer

    start(max_steps=7).train()  # 2 rollouts of the second batch are left over
    start(max_steps=9).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    run = open_run(tmp_path / "out")
    marks = [one.marks.get("trained") for one in run.rollouts()]
    assert run.health.untrained == {"left_over": marks.count("no: left_over")} == {"left_over": 2}
