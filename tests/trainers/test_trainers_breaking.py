"""Trainers of TRL whose methods are others than expected, and trainings that die: what is lost is counted."""

import inspect

import pytest
from finished_trainings import outcome, trained
from lives import warnings
from rig import call, half
from tools import multiply
from trainers import RUNNABLE, TAKES_TOOLS, make, needs

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow


MISSING = {  # what is recorded of how many when the method takes other arguments than expected
    ("gmpo", "_calculate_rewards"): "all",
    ("distillation", "_generate_and_score_completions"): "all",
    ("distillation", "_generate"): "none",
    ("online dpo", "_calculate_rewards_from_functions"): "none",
    ("a2po", "_calculate_rewards"): "none",
    ("a2po", "_prepare_inputs"): "all",
    ("sdpo", "_calculate_rewards"): "all",
    ("sdpo", "_prepare_training_batch"): "all",
    ("sdft", "_prepare_training_batch"): "all",
    ("sdft", "_generate"): "none",
    ("gkd", "generate_on_policy_outputs"): "all",
    ("gold", "_prepare_inputs"): "all",
    ("iwopd", "_fill_buffer"): "all",
}


def take_other_arguments(trainer, method):
    original = getattr(trainer, method)

    def another(*args, **kwargs):
        return original(*args, **kwargs)

    theirs = inspect.signature(original).parameters.values()
    another.__signature__ = inspect.Signature([one.replace(name=f"their_{one.name}") for one in theirs])
    setattr(trainer, method, another)


BOTH = {
    "distillation": ("_generate_and_score_completions", "_generate"),
    "sdft": ("_prepare_training_batch", "_generate"),
    "online dpo": ("training_step", "_calculate_rewards_from_functions"),
    "a2po": ("_prepare_inputs", "_calculate_rewards"),
}


@pytest.mark.parametrize("name", [name for name in BOTH if name in RUNNABLE])
def test_what_is_made_where_no_method_takes_the_expected_arguments_is_counted(tmp_path, name, caplog):
    trainer = make(tmp_path, name)
    for method in BOTH[name]:
        take_other_arguments(trainer, method)
    trainer.callback_handler.callbacks.append(RolloutPluginCallback(trainer=trainer))
    trainer.train()
    assert outcome(trainer).losses == trained(name, "alone").outcome.losses
    made = sum(row["model"] != "teacher_model" for row in trainer.truth)
    assert open_run(tmp_path / "out").health.drops == {"not_observed": made}
    assert sum("cannot be observed" in text for text in warnings(caplog)) == 1


@pytest.mark.parametrize(("name", "method"), [key for key in MISSING if key[0] in RUNNABLE])
def test_a_method_that_takes_other_arguments_costs_what_it_tells_and_is_named(tmp_path, name, method, caplog):
    trainer = make(tmp_path, name)
    take_other_arguments(trainer, method)
    callback = RolloutPluginCallback(trainer=trainer)
    trainer.callback_handler.callbacks.append(callback)
    trainer.train()
    assert outcome(trainer).losses == trained(name, "alone").outcome.losses
    assert sum(method in text for text in warnings(caplog)) == (name not in {"gkd", "gold", "iwopd"})
    run = open_run(tmp_path / "out")
    made = sum(row["model"] != "teacher_model" for row in trainer.truth)
    assert len(run) == (made if MISSING[name, method] == "all" else 0)
    assert len(run) + run.health.drops.get("not_observed", 0) == made


def dying(trainer, callback):
    """Train until it dies, and what is in the store then."""
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert callback.flush(600)
    return list(open_run(trainer.args.output_dir).rollouts())


def on_call(number, function):
    """The function, which dies when it is called for that time."""
    calls = []

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) == number:
            raise ZeroDivisionError("in the middle")
        return function(*args, **kwargs)

    return dies


def dies(completions, **kwargs):
    raise ZeroDivisionError("in the middle")


@pytest.mark.parametrize("name", [n for n in ("gmpo", "sdpo", "a2po", "online dpo") if n in RUNNABLE])
def test_a_reward_function_that_ends_training_leaves_what_it_was_given(tmp_path, name):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, name, [callback], arguments={"reward_funcs": [half, dies]})
    stored = dying(trainer, callback)
    assert len(stored) == len(trainer.truth) > 0
    assert {rollout.error for rollout in stored} == {"ZeroDivisionError: in the middle"}
    assert {rollout.finish for rollout in stored} == {"error"}
    assert [rollout.rewards for rollout in stored] == [
        {"half": float(i % 2) if name != "online dpo" else float(i // 2 % 2), "dies": None} for i in range(len(stored))
    ]


@pytest.mark.skipif(not TAKES_TOOLS, reason="DistillationTrainer takes no tools in this TRL")
def test_a_generation_that_breaks_off_between_turns_leaves_the_turns_there_were(tmp_path):
    callback = RolloutPluginCallback()
    script = [call("multiply", {"a": 2, "b": 3}), "plain"] * 2
    trainer = make(
        tmp_path, "distillation", [callback], script=script, arguments={"tools": [multiply]}, eval_strategy="no",
        max_completion_length=300, gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer.model.generate = on_call(2, trainer.model.generate)
    stored = dying(trainer, callback)
    assert [[c.result for c in rollout.tool_calls] for rollout in stored] == [["6"], [], ["6"], []]
    assert {rollout.error for rollout in stored} == {"ZeroDivisionError: in the middle"}
    assert [rollout.prompt[0]["content"][:6] for rollout in stored] == ["hello "] * 4


@pytest.mark.parametrize("name", [n for n in ("gold", "iwopd", "gkd") if n in RUNNABLE])
def test_a_student_that_dies_over_its_second_answer_leaves_the_first(tmp_path, name):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, name, [callback])
    trainer.model.generate = on_call(2, trainer.model.generate)
    stored = dying(trainer, callback)
    assert len(stored) == len(trainer.truth) == 4
    assert {rollout.error for rollout in stored} == ({None} if name == "gkd" else {"ZeroDivisionError: in the middle"})


@needs("sdft")
def test_what_follows_the_generation_of_sdft_may_die(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, "sdft", [callback])
    trainer.teacher_context_builder.build = on_call(1, None)
    stored = dying(trainer, callback)
    assert len(stored) == len(trainer.truth) == 8
    assert {rollout.error for rollout in stored} == {"ZeroDivisionError: in the middle"}
