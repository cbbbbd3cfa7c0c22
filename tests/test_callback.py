"""The callback in every way people add it, and through everything that happens to a run."""

import logging

import pytest
from rig import GRPO, RLOO, call, dataset, half, make, tiny_model
from tools import multiply

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.store.read import find_runs


def runs(folder):
    return [open_run(path) for path in find_runs(folder / "out" / "rollouts")]


def test_given_as_a_class_to_add_callback(tmp_path):
    trainer = make(tmp_path)
    trainer.add_callback(RolloutPluginCallback)
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 4


@pytest.mark.parametrize("kind", [RolloutPluginCallback, RolloutPluginCallback()])
def test_given_in_callbacks(tmp_path, kind):
    make(tmp_path, callbacks=[kind]).train()
    assert len(open_run(tmp_path / "out")) == 4


@pytest.mark.parametrize("cls", [GRPO, RLOO])
@pytest.mark.parametrize("way", ["callbacks", "class", "instance", "trainer"])
def test_evaluate_alone_records_every_batch(tmp_path, cls, way):
    trainer = make(
        tmp_path, cls=cls, eval_rows=dataset(6), callbacks=[RolloutPluginCallback] if way == "callbacks" else None
    )
    if way == "class":
        trainer.add_callback(RolloutPluginCallback)
    elif way == "instance":
        trainer.add_callback(RolloutPluginCallback())
    elif way == "trainer":
        trainer.add_callback(RolloutPluginCallback(trainer=trainer))
    trainer.evaluate()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(split="eval"))
    assert [list(r.prompt) for r in stored] == [row["prompt"] for row in trainer.truth]
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert [r.advantage for r in stored] == pytest.approx([row["advantage"] for row in trainer.truth])
    assert len(stored) == 12
    assert {r.step for r in stored} == {0}


def test_evaluate_before_and_after_train_stays_in_one_run(tmp_path):
    trainer = make(tmp_path, eval_rows=dataset(4), max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    (run,) = runs(tmp_path)
    assert len(run) == len(trainer.truth) == 24
    assert sorted({r.step for r in run.rollouts(split="eval")}) == [0, 2]
    assert run.steps == [1, 2]
    assert len({r.id for r in run.rollouts()}) == 24


def test_added_between_two_trainings_and_each_training_is_a_run(tmp_path):
    trainer = make(tmp_path)
    trainer.train()
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    trainer.train()
    assert [len(run) for run in runs(tmp_path)] == [4, 4]


def test_a_second_run_in_the_same_folder_overwrites_nothing(tmp_path):
    for _ in range(2):
        trainer = make(tmp_path, max_steps=2)
        trainer.add_callback(RolloutPluginCallback())
        trainer.train()
    found = runs(tmp_path)
    assert [len(run) for run in found] == [8, 8]
    assert found[0].info.id != found[1].info.id
    assert not {r.id for r in found[0].rollouts()} & {r.id for r in found[1].rollouts()}


def test_two_callbacks_record_two_runs_and_leave_the_trainer_as_it_was(tmp_path):
    trainer = make(tmp_path)
    before = dict(vars(trainer))
    trainer.add_callback(RolloutPluginCallback())
    trainer.add_callback(RolloutPluginCallback(dir=tmp_path / "elsewhere"))
    trainer.train()
    assert len(open_run(tmp_path / "out")) == len(open_run(tmp_path / "elsewhere")) == 4
    for _ in range(2):
        trainer.remove_callback(RolloutPluginCallback)
    trainer.train()
    assert len(open_run(tmp_path / "out")) == len(open_run(tmp_path / "elsewhere")) == 4
    assert not [name for name, value in vars(trainer).items() if hasattr(value, "_link")]
    assert trainer.reward_funcs is before["reward_funcs"]


def test_a_wrapper_put_on_after_ours_survives_detaching(tmp_path):
    trainer = make(tmp_path)
    callback = RolloutPluginCallback(trainer=trainer)
    trainer.add_callback(callback)
    ours, calls = trainer._calculate_rewards, []

    def theirs(*args, **kwargs):
        calls.append(1)
        return ours(*args, **kwargs)

    trainer._calculate_rewards = theirs
    trainer.train()
    assert trainer._calculate_rewards is theirs
    trainer.train()
    assert len(calls) == 2


def test_resume_continues_the_run_and_supersedes_what_is_done_again(tmp_path):
    def start(**config):
        trainer = make(tmp_path, save_strategy="steps", save_steps=2, **config)
        trainer.add_callback(RolloutPluginCallback())
        return trainer

    start(max_steps=3).train()
    start(max_steps=4).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
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


def test_a_training_that_starts_over_is_a_new_attempt_of_its_run(tmp_path):
    calls = []

    def fails_once(completions, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return half(completions)

    trainer = make(tmp_path, rewards=fails_once, max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    with pytest.raises(MemoryError):
        trainer.train()
    trainer._buffered_inputs = None
    trainer.train()
    (run,) = runs(tmp_path)
    assert [(r.step, r.attempt) for r in run.rollouts()] == [(1, 2)] * 4 + [(2, 2)] * 4
    assert len(list(run.rollouts(superseded=True))) == 16


def test_a_trainer_without_rollouts_gets_one_warning_and_no_effect(tmp_path, caplog):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(
        output_dir=str(tmp_path / "out"), max_steps=2, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
        per_device_train_batch_size=2, save_strategy="no",
    )  # fmt: skip
    rows = Dataset.from_dict({"text": ["hello world"] * 8})
    trainer = SFTTrainer(tiny_model(tmp_path), args=args, train_dataset=rows)
    trainer.add_callback(RolloutPluginCallback())
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert [r.message for r in caplog.records if r.name == "rollout_plugins"] == [
        "SFTTrainer makes no rollouts that are known here; the callback does nothing"
    ]
    assert not (tmp_path / "out" / "rollouts").exists()


def test_log_completions_is_warned_of_at_start(tmp_path, caplog):
    trainer = make(tmp_path, [call("multiply", {"a": 1, "b": 2}), "x"], tools=[multiply], log_completions=True)
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.add_callback(RolloutPluginCallback(trainer=trainer))
    assert any("set log_completions=False" in record.message for record in caplog.records)


def test_an_unsupported_trl_is_refused_when_the_callback_is_made(monkeypatch):
    import rollout_plugins.precautions as module

    monkeypatch.setattr(module, "installed", lambda package: "0.21.4")
    with pytest.raises(SetupError, match=r"trl 0\.21\.4 is too old: rollout-plugins needs 0\.22 or newer"):
        RolloutPluginCallback()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plugins": ["cpa"]}, "did you mean 'cap'"),
        ({"disable": ["metric"]}, "did you mean 'metrics'"),
        ({"config": {"images": {"mod": "strip"}}}, "did you mean 'mode'"),
        ({"on_full": "wait"}, "accepted: 'drop', 'block'"),
        ({"dir": __file__}, "is a file"),
        ({"plugins": "cap"}, "takes a list"),
    ],
)
def test_setup_mistakes_fail_at_once_and_name_the_fix(options, words):
    with pytest.raises(SetupError, match=words):
        RolloutPluginCallback(**options)


class Meddler:
    """Fails in every hook it has."""

    name = "meddler"

    @hookimpl
    def on_rollout(self, rollout):
        raise SystemExit(1)

    @hookimpl
    def select_rollouts(self, rollouts):
        return "nonsense"

    @hookimpl
    def rollout_metrics(self, rollouts):
        return {"x": "y"}

    @hookimpl
    def export_traces(self, traces):
        raise KeyError("no")


def test_a_plugin_that_fails_everywhere_costs_training_and_store_nothing(tmp_path):
    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback([Meddler()]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert trainer.state.global_step == 3
    assert len(run) == 12
    assert run.attempts[0]["plugin_errors"]["meddler"] >= 3


def test_strict_lets_a_plugins_error_end_the_run(tmp_path):
    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback([Meddler()], strict=True, sync=True))
    with pytest.raises(SystemExit):
        trainer.train()


def test_metrics_join_the_trainers_own_log_apart_for_train_and_eval(tmp_path):
    class Count:
        @hookimpl
        def rollout_metrics(self, rollouts, step):
            return {"count": len(rollouts)}

    trainer = make(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2, eval_rows=dataset(2))
    trainer.add_callback(RolloutPluginCallback([Count()], sync=True))
    trainer.train()
    history = trainer.state.log_history
    assert [entry["rollouts/count"] for entry in history if "loss" in entry] == [4.0, 4.0]
    assert [entry["eval_rollouts/count"] for entry in history if "eval_loss" in entry] == [4.0]


def test_what_is_stored_at_a_checkpoint_is_readable_while_training_goes_on(tmp_path):
    seen = []

    def peek(completions, **kwargs):
        callback.flush()
        if (tmp_path / "out" / "rollouts").exists():
            seen.append(len(open_run(tmp_path / "out")))
        return half(completions)

    callback = RolloutPluginCallback()
    trainer = make(tmp_path, rewards=peek, max_steps=3)
    trainer.add_callback(callback)
    trainer.train()
    assert seen == [0, 4, 8]


def test_a_callback_that_never_started_has_nothing_to_wait_for():
    callback = RolloutPluginCallback()
    callback.on_epoch_end(None, None, None)
    assert callback.flush(0) is True


def test_a_function_of_the_user_called_train_is_not_taken_for_the_trainers(tmp_path):
    from rollout_plugins.attaching import checkpoint_being_resumed, step_being_resumed

    def train(self, resume_from_checkpoint):
        return checkpoint_being_resumed(self), step_being_resumed(self)

    trainer = make(tmp_path)
    assert train(trainer, True) == train(trainer, "somewhere") == (None, 0)
