"""What each trainer of a recorded command gets, in this process: the module's own default callbacks are filled."""

import pickle
import shlex

import cloudpickle
import pytest
import torch
import transformers.trainer
from rig import GRPO, RLOO, dataset, make
from transformers import DefaultFlowCallback, Trainer, TrainerCallback, TrainingArguments

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.reading.find_runs import find_runs
from rollout_plugins.record.at_startup.rollouts_at_startup import END, RECORD, add_callback
from rollout_plugins.record.options import from_text, to_text


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """Do what an import of `transformers.trainer` does in a recorded process; gives the notes for its end."""
    module = transformers.trainer
    before, kind = module.DEFAULT_CALLBACKS, module.__class__

    def begin(options="1"):
        monkeypatch.setenv(RECORD, options)
        monkeypatch.setenv(END, f":{tmp_path / 'notes'}")
        add_callback(module)
        return lambda: (tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else []

    yield begin
    module.__class__ = kind
    module.DEFAULT_CALLBACKS = before


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x=None, labels=None):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


def plain_trainer(folder):
    """A trainer that makes no rollouts, as one for supervised fine-tuning."""
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 4
    args = TrainingArguments(
        output_dir=str(folder / "sft"), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True
    )
    return Trainer(Tiny(), args, train_dataset=rows)


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_a_trainer_is_recorded_without_a_line_of_code(tmp_path, recorded, cls):
    notes = recorded()
    trainer = make(tmp_path, cls=cls, max_steps=2)
    trainer.train()
    assert [list(r.completion) for r in open_run(tmp_path / "out").rollouts()] == [
        row["completion"] for row in trainer.truth
    ]
    assert notes() == ["recorded"]


def test_each_trainer_of_a_process_has_a_callback_and_a_run_of_its_own(tmp_path, recorded):
    recorded()
    for name in ("a", "b"):
        make(tmp_path, output_dir=str(tmp_path / name)).train()
    assert [len(open_run(tmp_path / name)) for name in ("a", "b")] == [4, 4]


def test_the_options_are_the_callbacks(tmp_path, recorded):
    (tmp_path / "plugins.json").write_text('{"cap": {"max_per_step": 1}}')
    recorded(f"--dir '{tmp_path}/my runs' --plugins cap --disable metrics --tokens --config {tmp_path}/plugins.json")
    trainer = make(tmp_path)
    trainer.train()
    stored = list(open_run(tmp_path / "my runs").rollouts(tokens=True))
    assert len(stored) == 4
    assert all(rollout.tokens is not None for rollout in stored)
    assert not any(name.startswith("rollouts/") for entry in trainer.state.log_history for name in entry)


def test_options_come_through_the_environment_as_they_were_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = ["--dir=my runs", "--plugins=redact,cap", "--mirror=file:///a b/c", "--end-seconds=5", "--tokens"]
    options = from_text(to_text(from_text(shlex.join(typed))))
    assert vars(options) == {
        "dir": f"{tmp_path}/my runs", "plugins": "redact,cap", "disable": "", "config": None, "tokens": True,
        "tokens_on_fault": False, "rendered": False, "mirror": "file:///a b/c", "end_seconds": "5",
    }  # fmt: skip
    assert to_text(from_text("1")) == "1"


# --- left alone ------------------------------------------------------------------------------------------------------


def test_a_trainer_without_rollouts_is_left_alone_and_one_after_it_is_recorded(tmp_path, recorded, capsys, caplog):
    notes = recorded()
    plain_trainer(tmp_path).train()
    plain_trainer(tmp_path).evaluate(eval_dataset=[{"x": torch.ones(2), "labels": torch.ones(1)}])
    assert "rollout" not in capsys.readouterr().err
    assert caplog.records == []
    assert set(notes()) == {"Trainer is not a supported trainer"}
    assert not list(tmp_path.glob("*-rollouts"))
    make(tmp_path).train()
    assert len(open_run(tmp_path / "out")) == 4
    assert notes()[-1] == "recorded"


# --- a script that adds the callback itself --------------------------------------------------------------------------


def own(folder, **more):
    return RolloutPluginCallback(disable=["metrics"], **more)


def added_first(folder):
    return make(folder, callbacks=[own(folder)])


def added_later(folder):
    trainer = make(folder)
    trainer.add_callback(own(folder))
    return trainer


def added_as_a_class(folder):
    class Own(RolloutPluginCallback):
        def __init__(self):
            super().__init__(disable=["metrics"])

    trainer = make(folder)
    trainer.add_callback(Own)
    return trainer


def added_before_an_evaluation(folder):
    trainer = make(folder, eval_rows=dataset(4))
    trainer.add_callback(own(folder))
    trainer.evaluate()
    return trainer


@pytest.mark.parametrize("add", [added_first, added_later, added_as_a_class, added_before_an_evaluation])
def test_a_script_that_adds_the_callback_keeps_its_own_once(tmp_path, recorded, capsys, add):
    notes = recorded("--tokens")
    trainer = add(tmp_path)
    trainer.train()
    assert len(find_runs(tmp_path / "out-rollouts")) == 1
    stored = list(open_run(tmp_path / "out").rollouts(tokens=True))
    assert [list(rollout.completion) for rollout in stored] == [row["completion"] for row in trainer.truth]
    assert all(rollout.tokens is None for rollout in stored)
    assert set(notes()) == {"recorded"}
    told = capsys.readouterr().err
    assert (told.count("records every rollout"), "twice" in told) == (1, False)


def test_one_that_is_added_after_an_evaluation_takes_over(tmp_path, recorded):
    recorded()
    trainer = make(tmp_path, eval_rows=dataset(4))
    trainer.evaluate()
    trainer.add_callback(own(tmp_path, dir=tmp_path / "own"))
    trainer.train()
    assert {rollout.split for rollout in open_run(tmp_path / "out").rollouts()} == {"eval"}
    assert [rollout.split for rollout in open_run(tmp_path / "own").rollouts()] == ["train"] * 4


# --- training is not affected ----------------------------------------------------------------------------------------


def test_a_library_that_puts_a_list_of_its_own_in_place_is_recorded(tmp_path, recorded):
    class Flow(DefaultFlowCallback):
        pass

    recorded()
    transformers.trainer.DEFAULT_CALLBACKS = [Flow]  # as ms-swift does
    trainer = make(tmp_path)
    trainer.train()
    kinds = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
    assert kinds.count("Flow") == kinds.count("RecordingCallback") == 1
    assert "DefaultFlowCallback" not in kinds
    assert len(open_run(tmp_path / "out")) == 4


def test_the_module_can_still_be_pickled(recorded):
    recorded()
    module = pickle.loads(cloudpickle.dumps(transformers.trainer))
    assert module is transformers.trainer


@pytest.mark.parametrize(
    "options", ["--plugins redcat", "--unknown", "maybe", "--config nowhere.json", "--mirror s4://x/y"]
)
def test_options_that_fail_there_cost_a_line_and_not_the_training(tmp_path, recorded, options, capfd):
    notes = recorded(options)
    trainer = make(tmp_path)
    trainer.train()
    assert trainer.state.global_step == 1
    warned = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rollouts record: ")]
    assert warned == [f"rollouts record: {line}" for line in notes()]
    assert len(warned) == 1
    assert warned[0].startswith("rollouts record: not recorded: ")
    assert not list(tmp_path.glob("*-rollouts"))


def outcome(folder):
    class Sees(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(torch.get_rng_state())

    seen = []
    trainer = make(folder, max_steps=4, gradient_accumulation_steps=2, learning_rate=1e-3, callbacks=[Sees()])
    trainer.train()
    losses = [(entry["loss"], entry["reward"]) for entry in trainer.state.log_history if "loss" in entry]
    return losses, seen, trainer.model.state_dict()


def test_losses_random_numbers_and_weights_are_those_of_a_run_without(tmp_path, recorded):
    alone = outcome(tmp_path / "alone")
    recorded("--tokens --rendered --plugins redact,dedup,cap")
    losses, seen, weights = outcome(tmp_path / "recorded")
    assert len(open_run(tmp_path / "recorded" / "out")) == 32
    assert losses == alone[0]
    assert any(loss for loss, _ in losses)
    assert all(map(torch.equal, seen, alone[1]))
    assert all(torch.equal(weights[name], value) for name, value in alone[2].items())
