"""Metrics join the trainer's own log, and what goes by that log has them."""

import threading

import pytest
from rig import dataset, half, make
from store_rig import Count
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, hookimpl


def test_metrics_join_the_trainers_own_log_apart_for_train_and_eval(tmp_path):
    trainer = make(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2, eval_rows=dataset(2))
    trainer.add_callback(RolloutPluginCallback([Count()], sync=True))
    trainer.train()
    history = trainer.state.log_history
    assert [entry["rollouts/count"] for entry in history if "loss" in entry] == [4.0, 4.0]
    assert [entry["eval_rollouts/count"] for entry in history if "eval_loss" in entry] == [4.0]


class Slow(Count):
    """Counts, but not before it may, or before so many seconds have passed."""

    def __init__(self, seconds):
        self.may, self.seconds = threading.Event(), seconds

    @hookimpl
    def on_rollout(self, rollout):
        self.may.wait(self.seconds)


def test_what_the_last_evaluation_measured_too_late_for_its_log_is_in_the_one_at_the_end(tmp_path):
    slow = Slow(60)

    class Last(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            if state.global_step == 2:
                slow.may.set()

    trainer = make(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, eval_rows=dataset(2))
    trainer.add_callback(RolloutPluginCallback([slow]))
    trainer.add_callback(Last())
    trainer.train()
    (numbers,) = [entry for entry in trainer.state.log_history if "rollouts/count" in entry]
    assert "train_runtime" in numbers
    assert numbers["eval_rollouts/count"] == 4.0


def test_an_evaluation_by_itself_logs_what_it_measured(tmp_path):
    trainer = make(tmp_path, eval_rows=dataset(2))
    trainer.add_callback(RolloutPluginCallback([Slow(0.1)]))
    trainer.evaluate()
    assert trainer.state.log_history[-1]["eval_rollouts/count"] == 4.0


def logging_trainer(folder, *, on, **config):
    callbacks = [RolloutPluginCallback([Count()], sync=True)] if on else None
    return make(folder, max_steps=2, eval_rows=dataset(2), callbacks=callbacks, **config)


def test_what_log_does_to_its_dictionary_reaches_evaluate_and_train(tmp_path):
    trainers = [logging_trainer(tmp_path / str(on), on=on) for on in (False, True)]
    trained = [trainer.train().metrics.keys() for trainer in trainers]
    evaluated = [trainer.evaluate().keys() for trainer in trainers]
    assert trained[1] == trained[0] >= {"epoch", "train_loss"}
    assert evaluated[1] == evaluated[0] >= {"epoch", "eval_reward", "eval_rewards/half/mean"}
    assert trainers[1].state.log_history[-1]["eval_rollouts/count"] == 4.0


BY_METRIC = {
    "load_best_model_at_end": {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1},
    "save_strategy": {"save_strategy": "best"},
    "early stopping": {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1},
    "reduce_lr_on_plateau": {"lr_scheduler_type": "reduce_lr_on_plateau"},
}


@pytest.mark.parametrize("name", BY_METRIC)
def test_a_trainer_that_goes_by_a_metric_of_evaluation_has_it(tmp_path, name):
    from transformers import EarlyStoppingCallback

    options = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_reward", **BY_METRIC[name]}
    trainer = logging_trainer(tmp_path, on=True, **options)
    if name == "early stopping":
        trainer.add_callback(EarlyStoppingCallback(5))
    trainer.train()
    assert trainer.state.global_step == 2
    assert [entry["eval_rollouts/count"] for entry in trainer.state.log_history if "eval_loss" in entry] == [4.0, 4.0]
    assert trainer.state.best_metric == 0.5 or name == "reduce_lr_on_plateau"


def test_log_called_by_name_leaves_the_callers_own_values_alone(tmp_path):
    trainer = logging_trainer(tmp_path, on=True)
    trainer.add_callback(RolloutPluginCallback([Count()], sync=True, dir=tmp_path / "another"))
    mine = {}

    def log_mine(completions, **kwargs):
        mine.update({"rollouts/count": -1.0})
        trainer.log(logs=mine)
        return half(completions)

    trainer.reward_funcs[0] = log_mine
    trainer.train()
    assert {name: value for name, value in mine.items() if "rollouts" in name} == {"rollouts/count": -1.0}
    assert "epoch" in mine
    logged = [entry["rollouts/count"] for entry in trainer.state.log_history if "rollouts/count" in entry]
    assert logged == [-1.0, 4.0] * 2
