"""Trainings that resume or start over go on in their run."""

import itertools
import threading
from pathlib import Path

import pytest
from rig import dataset, half, make
from rollout_hookspecs import hookimpl
from store_rig import runs
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run


@pytest.mark.parametrize("kind", [str, Path])
def test_resume_continues_the_run_and_supersedes_what_is_done_again(tmp_path, kind):
    def start(**config):
        trainer = make(tmp_path, save_strategy="steps", save_steps=2, **config)
        trainer.add_callback(RolloutPluginCallback())
        return trainer

    start(max_steps=3).train()
    start(max_steps=4).train(resume_from_checkpoint=kind(tmp_path / "out" / "checkpoint-2"))
    (run,) = runs(tmp_path)
    assert run.info.attempt == 2
    assert run.info.resumed_from == 2
    assert [(r.step, r.attempt) for r in run.rollouts()] == [
        (s, 1 if s < 3 else 2) for s in range(1, 5) for _ in range(4)
    ]
    assert len(list(run.rollouts(superseded=True))) == 20
    assert len({r.id for r in run.rollouts(superseded=True)}) == 20


def test_resume_from_a_checkpoint_that_never_had_it_and_the_reverse(tmp_path):
    make(tmp_path, save_strategy="steps", save_steps=1, max_steps=1).train()
    trainer = make(tmp_path, save_strategy="steps", save_steps=1, max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train(resume_from_checkpoint=True)
    (run,) = runs(tmp_path)
    assert run.steps == [2]
    assert run.info.resumed_from == 1
    without = make(tmp_path, save_strategy="steps", save_steps=1, max_steps=3)
    without.train(resume_from_checkpoint=True)
    assert without.state.global_step == 3
    assert len(runs(tmp_path)) == 1


def test_resume_restores_callback_states_without_us(tmp_path):
    def start(steps):
        trainer = make(
            tmp_path,
            save_strategy="steps",
            save_steps=1,
            max_steps=steps,
            restore_callback_states_from_checkpoint=True,
        )
        trainer.add_callback(RolloutPluginCallback())
        return trainer

    start(1).train()
    start(2).train(resume_from_checkpoint=True)
    assert open_run(tmp_path / "out").steps == [1, 2]


def failing(error, calls=(2,)):
    """A reward that fails at these calls."""
    counted = itertools.count(1)

    def reward(completions, **kwargs):
        if next(counted) in calls:
            raise error
        return half(completions)

    return reward


def test_an_interrupted_training_and_the_next_one_are_two_runs_and_hide_nothing_of_each_other(tmp_path, capfd):
    trainer = make(tmp_path, rewards=failing(KeyboardInterrupt()), max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer._buffered_inputs = None
    trainer.train()
    first, second = runs(tmp_path)
    told = capfd.readouterr().err
    assert told.index("recorded 8 rollouts, none lost") < told.index(f"now or later: rollouts view {second.dir}")
    assert [run.info.attempt for run in (first, second)] == [1, 1]
    assert [(r.step, r.error) for r in first.rollouts()] == [(1, None)] * 4 + [(2, "KeyboardInterrupt")] * 4
    assert [r.step for r in second.rollouts()] == [1] * 4 + [2] * 4


def test_an_interrupted_training_that_resumes_goes_on_in_its_run(tmp_path):
    trainer = make(tmp_path, rewards=failing(KeyboardInterrupt()), max_steps=2, save_steps=1, save_strategy="steps")
    trainer.add_callback(RolloutPluginCallback())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer._buffered_inputs = None
    trainer.train(resume_from_checkpoint=True)
    (run,) = runs(tmp_path)
    assert [(r.step, r.attempt) for r in run.rollouts()] == [(1, 1)] * 4 + [(2, 2)] * 4
    assert len(list(run.rollouts(superseded=True))) == 12


def test_a_training_that_starts_over_with_a_smaller_batch_is_a_new_attempt_of_its_run(tmp_path):
    (run,) = started_over(tmp_path, RolloutPluginCallback())
    assert [(r.step, r.attempt) for r in run.rollouts()] == [(1, 2)] * 18 + [(2, 2)] * 18
    assert len(list(run.rollouts(superseded=True))) == 76


def test_a_training_may_start_over_before_its_run_is_on_the_disk(tmp_path):
    starts, began_again = iter((False, False, True)), threading.Event()

    class Disk:
        required = True

        @hookimpl
        def on_run_start(self):
            began_again.wait(60)

    class Third(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            if next(starts):
                began_again.set()

    (run,) = started_over(tmp_path, RolloutPluginCallback(plugins=[Disk()]), Third(), fails=(2, 4))
    assert {r.attempt for r in run.rollouts()} == {3}
    assert sorted({r.attempt for r in run.rollouts(superseded=True)}) == [1, 2, 3]


def started_over(folder, *callbacks, fails=(2,)):
    """The runs of a training whose memory is too small at these calls of its reward."""
    reward = failing(RuntimeError("CUDA out of memory."), fails)
    trainer = make(folder, rewards=reward, rows=dataset(64), max_steps=2, per_device_train_batch_size=20)
    trainer.args.auto_find_batch_size = True  # which TRL 1.16 no longer takes
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    return runs(folder)
