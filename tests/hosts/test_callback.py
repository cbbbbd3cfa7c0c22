"""The callback in every way people add it and set it up; each training is a run."""

import logging

import pytest
from rig import GRPO, RLOO, call, dataset, make
from store_rig import runs
from tools import multiply

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.errors import SetupError


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


def test_a_callback_that_is_added_twice_records_once_and_warns(tmp_path, caplog):
    first, second = RolloutPluginCallback(), RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[first, second], eval_rows=dataset(4))
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
        trainer.evaluate()
    assert [len(run) for run in runs(tmp_path)] == [12]
    warnings = [record.getMessage() for record in caplog.records if "twice" in record.getMessage()]
    assert warnings == [
        (
            "GRPO has RolloutPluginCallback twice; the first one records, this one does nothing: "
            "remove one of them, or give it another dir"
        )
    ]
    trainer.remove_callback(first)
    trainer.train()
    assert [len(run) for run in runs(tmp_path)] == [12, 4]


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


def test_log_completions_is_warned_of_at_start(tmp_path, caplog):
    trainer = make(tmp_path, [call("multiply", {"a": 1, "b": 2}), "x"], tools=[multiply], log_completions=True)
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.add_callback(RolloutPluginCallback(trainer=trainer))
    assert any("set log_completions=False" in record.message for record in caplog.records)


def test_an_unsupported_trl_is_refused_when_the_callback_is_made(monkeypatch):
    import rollout_plugins.hosts.kit.trainer_facts as module

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


def test_a_callback_that_never_started_has_nothing_to_wait_for():
    callback = RolloutPluginCallback()
    callback.on_epoch_end(None, None, None)
    assert callback.flush(0) is True


def test_a_function_of_the_user_called_train_is_not_taken_for_the_trainers(tmp_path):
    from rollout_plugins.hosts.kit.find_trainer import checkpoint_being_resumed, step_being_resumed

    def train(self, resume_from_checkpoint):
        return checkpoint_being_resumed(self), step_being_resumed(self)

    trainer = make(tmp_path)
    assert train(trainer, True) == train(trainer, "somewhere") == (None, 0)
