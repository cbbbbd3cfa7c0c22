"""Each trainer of TRL that evaluates alone, trains twice, or resumes."""

import shutil
from collections import UserList
from contextlib import suppress

import pytest
import torch
from finished_trainings import trained
from lives import warnings
from trainers import KINDS, RUNNABLE, kinds, make, needs, tok

from rollout_plugins import RolloutPluginCallback, open_run

pytestmark = pytest.mark.slow


@kinds
def test_evaluate_alone(tmp_path, name, caplog):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, name, [callback] if KINDS[name].evaluates else None)
    if not KINDS[name].evaluates:
        trainer.add_callback(callback)
    with suppress(ValueError if name == "online dpo" else ()):  # which TRL itself cannot evaluate
        trainer.evaluate()
    assert [text for text in warnings(caplog) if "rollout" in text] == []
    if not KINDS[name].evaluates:
        assert trainer.truth == []
        assert not (tmp_path / "out-rollouts").exists()
        return
    rollouts = list(open_run(tmp_path / "out").rollouts())
    assert len(rollouts) == len(trainer.truth) > 0
    assert {(rollout.split, rollout.step) for rollout in rollouts if not rollout.marks.get("stage")} == {("eval", 0)}


@pytest.mark.parametrize("name", [n for n in ("distillation", "sdpo", "sdft", "a2po", "rloo") if n in RUNNABLE])
def test_evaluation_after_training_is_kept_whole_by_every_trainer(tmp_path, name, caplog):
    assert KINDS[name].evaluates
    trainer = make(tmp_path, name, eval_strategy="no", per_device_eval_batch_size=8)
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()
    before = len(trainer.truth)
    trainer.evaluate()
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts(split="eval", tokens=True))
    truth = trainer.truth[before:]
    assert len(stored) == len(truth) > 0
    assert [list(r.tokens.completion) for r in stored] == [row["completion"] for row in truth]
    assert all(r.completion and r.prompt and r.finish in {"stop", "length"} for r in stored)
    assert run.health.drops == {}
    assert [text for text in warnings(caplog) if "before" in text and "stage" not in text] == []


@needs("a2po")
def test_a2po_samples_before_training_in_the_run_of_that_training(tmp_path, caplog):
    done = trained("a2po", "in callbacks")
    first = [rollout for rollout in done.rollouts if rollout.marks.get("stage")]
    assert len(first) == sum(row["model"] == "ref_model" for row in done.truth) == 24
    assert {(r.split, r.step, r.policy_step, r.group_size, r.advantage) for r in first} == {("train", 0, 0, 2, None)}
    assert all(one.prompt == other.prompt for one, other in zip(first[::2], first[1::2], strict=True))
    values = {str(one.prompt): (one.reward, other.reward) for one, other in zip(first[::2], first[1::2], strict=True)}
    for rollout in done.rollouts:
        if rollout.advantage is not None:
            beta, worth = 0.5, torch.tensor(values[str(rollout.prompt)])
            estimate = beta * (torch.logsumexp(worth / beta, 0) - torch.log(torch.tensor(2.0)))
            assert rollout.advantage == pytest.approx(rollout.reward - estimate.item(), abs=1e-6)
    trainer = make(tmp_path, "a2po")
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    assert len(open_run(tmp_path / "out")) == sum(row["model"] == "model" for row in trainer.truth) == 20
    assert [text for text in warnings(caplog) if "A2PO's first stage" in text]


@pytest.mark.parametrize("name", [n for n in ("a2po", "distillation", "gold") if n in RUNNABLE])
def test_a_second_training_is_a_run_of_its_own_and_whole(tmp_path, name, caplog):
    trainer = make(tmp_path, name, [RolloutPluginCallback()])
    trainer.train()
    first = len(trainer.truth)
    trainer.train()
    assert len(open_run(tmp_path / "out")) == len(trainer.truth) - first > 0
    assert not [text for text in warnings(caplog) if "before the callback" in text]


@pytest.mark.parametrize("name", [n for n in ("distillation", "sdft", "gold", "iwopd") if n in RUNNABLE])
def test_a_resumed_training_goes_on_in_its_run(tmp_path, name):
    first = make(tmp_path, name, [RolloutPluginCallback()], save_strategy="steps", save_steps=1, eval_strategy="no")
    first.train()
    again = make(tmp_path, name, [RolloutPluginCallback()], eval_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    # IWOPD finds its data used up: an attempt without rollouts takes the place of none
    before = [row for row in first.truth if row["step"] == 0 or not again.truth]
    run = open_run(tmp_path / "out")
    stored = list(run.rollouts())
    assert len(run.attempts) == 2
    assert [message["content"] for rollout in stored for message in rollout.completion] == [
        tok().decode([token for token in row["completion"] if token != tok().eos_token_id])
        for row in [*before, *again.truth]
    ]
    assert [rollout.step for rollout in stored] == [row["step"] + 1 for row in [*before, *again.truth]]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("gold", "iwopd")])
def test_what_a_buffer_holds_that_cannot_be_read_is_counted(tmp_path, name):
    trainer = make(tmp_path, name)
    fill = trainer._fill_buffer

    def filling(generation_batch, buffer_steps):
        fill(generation_batch, buffer_steps)
        trainer._buffered_inputs = UserList(trainer._buffered_inputs)

    trainer._fill_buffer = filling
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (len(run), run.health.drops) == (0, {"not_observed": len(trainer.truth)})


@needs("a2po")
@pytest.mark.parametrize("given", ["its path", True])
def test_a_resumed_a2po_samples_again_in_the_attempt_that_resumes(tmp_path, given):
    make(tmp_path, "a2po", [RolloutPluginCallback()], save_strategy="steps", save_steps=1, eval_strategy="no").train()
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    again = make(tmp_path, "a2po", [RolloutPluginCallback()], eval_strategy="no")
    again.train(resume_from_checkpoint=given if given is True else str(tmp_path / "out" / "checkpoint-1"))
    run = open_run(tmp_path / "out")
    assert [attempt["resumed_from"] for attempt in run.attempts] == [None, 1]
    last = [rollout for rollout in run.rollouts() if rollout.attempt == 2]
    assert len(last) == len(again.truth)
    assert {rollout.step for rollout in last} == {0, 2}
