"""A callback that is taken off, put on again, or added in the middle of a training."""

import pytest
from lives import add, numbered, warnings
from rig import dataset, make
from store_rig import runs
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["remove_callback", "pop_callback", "callback_handler.remove_callback"])
@pytest.mark.parametrize("what", ["class", "instance"])
def test_a_callback_that_is_taken_off_records_nothing_more(tmp_path, how, what):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], eval_rows=dataset(4))
    trainer.train()
    *path, method = how.split(".")
    getattr(getattr(trainer, *path) if path else trainer, method)(
        RolloutPluginCallback if what == "class" else callback
    )
    history = len(trainer.state.log_history)
    trainer.evaluate()
    trainer.train()
    (run,) = runs(tmp_path)
    assert len(run) == 4
    assert run.health.drops == {}
    assert not [name for name, value in vars(trainer).items() if hasattr(value, "_link")]
    assert not any("rollouts/" in name for entry in trainer.state.log_history[history:] for name in entry)


class Doing(TrainerCallback):
    """Does something in the middle of training, once."""

    def __init__(self, event, step, action):
        self._step, self._action = step, action
        setattr(self, event, self._act)

    def _act(self, args, state, control, **kwargs):
        if self._action is not None and state.global_step >= self._step:
            action, self._action = self._action, None
            action()


def test_taken_off_in_the_middle_of_training_and_put_on_again(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], max_steps=6)
    trainer.add_callback(Doing("on_step_begin", 2, lambda: trainer.remove_callback(callback)))
    trainer.add_callback(Doing("on_step_begin", 4, lambda: trainer.add_callback(callback)))
    trainer.train()
    (run,) = runs(tmp_path)
    assert run.steps == [1, 2, 5, 6]
    assert [a["attempt"] for a in run.attempts] == [1]
    assert run.attempts[0]["ended"]


def test_taken_off_in_the_middle_of_a_training_the_next_one_is_a_run_of_its_own(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], max_steps=3)
    trainer.add_callback(Doing("on_step_begin", 1, lambda: trainer.remove_callback(callback)))
    trainer.train()
    trainer.add_callback(callback)
    trainer.train()
    assert [(run.steps, len(run.attempts)) for run in runs(tmp_path)] == [([1], 1), ([1, 2, 3], 1)]


@pytest.mark.parametrize("kind", ["class", "instance"])
@pytest.mark.parametrize("event", ["on_step_begin", "on_substep_end", "on_step_end", "on_log", "on_save"])
def test_added_in_the_middle_of_training_records_from_then_on_and_says_so(tmp_path, kind, event, caplog):
    trainer = make(
        tmp_path, rows=numbered(16), max_steps=4, gradient_accumulation_steps=2, save_strategy="steps", save_steps=1
    )
    trainer.add_callback(Doing(event, 2, lambda: add(trainer, kind)))
    trainer.train()
    (run,) = runs(tmp_path)
    first = 4 if event == "on_substep_end" else 3
    assert run.steps == list(range(first, 5))
    truth = [row for row in trainer.truth if row["policy_step"] >= first - 1]
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in truth]
    assert run.health.drops == {}
    assert run.attempts[0]["ended"]
    assert [text for text in warnings(caplog) if "in the middle of training, at step 2" in text]
