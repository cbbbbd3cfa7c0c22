"""A step of a real GRPO training, trained again from the store."""

import json

import pytest
import torch
from reading import one, write
from rig import RLOO, call, dataset, make, tiny_model
from tools import multiply

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError
from rollout_plugins.learn.find_fault import Fault, find_smallest_set
from rollout_plugins.learn.replay import replay


def digits(completions, **kwargs):
    """A reward that differs between answers, so that advantages do too."""
    return [float(sum(map(ord, completion[-1]["content"])) % 7) for completion in completions]


def train(folder, script=None, *, tokens=True, **config):
    options = {
        "max_steps": 3, "save_strategy": "steps", "save_steps": 1, "save_only_model": True, "learning_rate": 1e-2,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **config,
    }  # fmt: skip
    callback = RolloutPluginCallback(tokens=tokens, dir=folder / "runs")
    trainer = make(folder, script, rewards=digits, rows=dataset(16), callbacks=[callback], **options)
    trainer.train()
    return open_run(folder / "runs"), folder / "out"


LOSSES = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "with a reference model": {"beta": 0.1},
    "masked when truncated": {"mask_truncated_completions": True},
    "four generations in turn": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
}


@pytest.mark.parametrize("config", LOSSES.values(), ids=LOSSES)
def test_a_step_trained_again_from_its_checkpoint_is_bit_equal(tmp_path, config):
    run, out = train(tmp_path, **config)
    again = replay(run, 3, out / "checkpoint-2")
    assert (again.tier, again.notes) == ("bit-equal", [])
    assert again.recorded_loss == again.loss
    assert sum(one.loss for one in again.rollouts) == pytest.approx(again.loss, rel=1e-4, abs=1e-7)
    assert {one.id for one in again.rollouts} == {rollout.id for rollout in run.rollouts(step=3)}


def test_the_first_step_starts_from_the_model(tmp_path):
    run, _ = train(tmp_path)
    assert replay(run, 1, tiny_model(tmp_path)).tier == "bit-equal"


def test_a_later_step_of_a_generation_uses_the_recorded_log_probabilities(tmp_path):
    run, out = train(tmp_path, steps_per_generation=4, num_iterations=2, max_steps=4)
    assert run.steps == [1]
    for step in (2, 3, 4):
        again = replay(run, step, out / f"checkpoint-{step - 1}")
        assert again.tier == "bit-equal", (step, again)
    assert (
        len(
            {one.id for one in replay(run, 2, out / "checkpoint-1").rollouts}
            & {one.id for one in replay(run, 1, tiny_model(tmp_path)).rollouts}
        )
        == 0
    )


def test_tool_results_stay_masked(tmp_path):
    script = [call("multiply", {"a": n, "b": 3}) for n in range(4)] + [f"it is {n}" for n in range(4)]
    run, out = train(tmp_path, script, tools=[multiply], max_tool_calling_iterations=2, gradient_accumulation_steps=1)
    assert any(0 in rollout.tokens.mask for rollout in run.rollouts(step=2, tokens=True))
    assert replay(run, 2, out / "checkpoint-1").tier == "bit-equal"


def test_other_weights_train_the_same_rollouts_and_that_is_said(tmp_path):
    run, out = train(tmp_path)
    again = replay(run, 3, out / "checkpoint-1")
    assert again.tier == "same rollouts"
    (line,) = again.notes
    assert line.endswith("checkpoint-1 holds the weights of step 1, and step 3 starts from those of step 2")


def test_recording_the_order_changes_no_training(tmp_path):
    losses = []
    for name, callbacks in (("with", [RolloutPluginCallback(tokens=True, dir=tmp_path / "runs")]), ("without", [])):
        trainer = make(tmp_path / name, rewards=digits, callbacks=callbacks, max_steps=3, learning_rate=1e-2)
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
        losses.append(torch.get_rng_state().tolist())
    assert losses[:2] == losses[2:]


def test_the_recorded_order_is_that_of_the_micro_batches(tmp_path):
    seen = []
    folder = tmp_path
    trainer = make(folder, rewards=digits, max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                   callbacks=[RolloutPluginCallback(tokens=True, dir=folder / "runs")])  # fmt: skip
    prepare = trainer._prepare_inputs

    def watched(batch):
        inputs = prepare(batch)
        seen.extend(
            [
                ids[mask.bool()].tolist()
                for ids, mask in zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
            ]
        )
        return inputs

    trainer._prepare_inputs = watched
    trainer.train()
    run = open_run(folder / "runs")
    for step in (1, 2):
        ordered = sorted(run.rollouts(step=step, tokens=True), key=lambda rollout: rollout.extra["trained_place"])
        assert [list(rollout.tokens.completion) for rollout in ordered] == seen[4 * (step - 1) : 4 * step]


def test_the_rollout_whose_loss_is_nan_is_found(tmp_path, monkeypatch, capsys):
    run, out = train(tmp_path, gradient_accumulation_steps=1)
    ids = [rollout.id for rollout in run.rollouts(step=2)]
    broken = ids[2]
    real = type(run).rollouts

    def with_nan(self, **filters):
        from dataclasses import replace

        for rollout in real(self, **filters):
            yield replace(rollout, advantage=float("nan")) if rollout.id == broken else rollout

    monkeypatch.setattr(type(run), "rollouts", with_nan)
    found = replay(run, 2, out / "checkpoint-1", bisect="nan")
    assert found.culprits == [broken]
    assert found.also == []
    assert (
        main(["replay", str(run.dir), "--step", "2", "--checkpoint", str(out / "checkpoint-1"), "--bisect", "nan"])
        == 0
    )
    printed = capsys.readouterr().out
    assert f"a smallest set with a NaN or an infinity: {broken}" in printed


def test_the_rollouts_whose_gradient_passes_a_bound_are_found(tmp_path):
    run, out = train(tmp_path)
    plain = replay(run, 2, out / "checkpoint-1", bisect="grad>1e9")
    assert plain.culprits == []
    norms = sorted(one.grad_norm for one in plain.rollouts)
    single = replay(run, 2, out / "checkpoint-1", bisect=f"grad>{norms[-1] * 0.99:.6f}")
    assert single.culprits == [max(single.rollouts, key=lambda one: one.grad_norm).id]
    several = replay(run, 2, out / "checkpoint-1", bisect=f"grad>{norms[-1] * 1.01:.6f}")
    assert len(several.culprits) != 1


def test_no_rollout_of_a_smallest_set_can_be_left_out():
    vectors = [3.0, 4.0, 5.0, -4.0, 1.0]
    measure = lambda places: (0.0, abs(sum(vectors[place] for place in places)))  # noqa: E731
    single = [measure([place]) for place in range(5)]
    found = find_smallest_set(Fault.parse("grad>8.5"), single, measure)
    assert measure(found)[1] > 8.5
    for place in found:
        assert measure([one for one in found if one != place])[1] <= 8.5
    assert find_smallest_set(Fault.parse("grad>100"), single, measure) == []


def test_a_run_without_tokens_is_refused(tmp_path, capsys):
    run = write(tmp_path, [one(1, index) for index in range(4)], host="grpo", trainer="GRPOTrainer")
    assert main(["replay", str(run), "--step", "1", "--checkpoint", "x"]) == 1
    assert "has no tokens of step 1, so it cannot be trained again; record with" in capsys.readouterr().err


def test_what_cannot_be_replayed_is_one_sentence(tmp_path, capsys):
    run, _ = train(tmp_path, max_steps=1, save_strategy="no")
    for words, said in (
        (["--step", "9"], "no rollouts of"),
        (
            ["--step", "1", "--bisect", "inf"],
            "'inf' is not a fault to look for; accepted: 'nan', or a bound such as 'grad>10'",
        ),
        (["--step", "1"], "no model could be loaded from /nowhere"),
    ):
        assert main(["replay", str(run.dir), "--checkpoint", "/nowhere", *words]) == 1
        lines = capsys.readouterr().err.strip().splitlines()
        assert said in lines[-1]
    trainer = make(tmp_path / "rloo", cls=RLOO, callbacks=[RolloutPluginCallback(tokens=True, dir=tmp_path / "other")])
    trainer.train()
    with pytest.raises(RunError, match="was trained by RLOO; only GRPO can be replayed"):
        replay(open_run(tmp_path / "other"), 1, "x")


def test_the_command_prints_json(tmp_path, capsys):
    run, out = train(tmp_path, max_steps=2)
    capsys.readouterr()
    assert main(["replay", str(run.dir), "--step", "2", "--checkpoint", str(out / "checkpoint-1"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tier"] == "bit-equal"
    assert len(result["rollouts"]) == 8
