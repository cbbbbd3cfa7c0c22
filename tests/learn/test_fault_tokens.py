"""tokens="on-fault": nothing is stored until the loss of a real training breaks, and then what a replay needs."""

import math

import pyarrow.parquet as pq
import pytest
from rig import dataset, make

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, open_run
from rollout_plugins.engine.fault_watch import FaultWatch
from rollout_plugins.errors import RunError, SetupError
from rollout_plugins.learn.replay import replay
from rollout_plugins.store.deferred_tokens import DeferredTokens

BAD_STEP = 4


def train(folder, *, explode=True, tokens="on-fault", steps=6, **config):
    """A training in which one answer of step 4 gets a reward that no gradient survives."""
    calls = []

    def reward(completions, **kwargs):
        calls.append(len(completions))
        values = [float(index % 2) for index in range(len(completions))]
        if explode and len(calls) == BAD_STEP:
            values[2] = 3e38
        return values

    options = {
        "scale_rewards": "none",
        "loss_type": "grpo",
        "save_strategy": "steps",
        "save_steps": 1,
        "save_only_model": True,
        "learning_rate": 1e-4,
    }
    trainer = make(
        folder, ["one two", "three", "four", "five six"], rewards=reward, rows=dataset(16), max_steps=steps,
        callbacks=[RolloutPluginCallback(tokens=tokens, dir=folder / "runs")], **options, **config,
    )  # fmt: skip
    trainer.train()
    return trainer, open_run(folder / "runs")


def stored_tokens(run):
    return sorted((run.dir / "fault_tokens").glob("*.parquet"))


def test_tokens_are_stored_when_the_gradient_of_a_real_training_becomes_nan(tmp_path):
    trainer, run = train(tmp_path)
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    assert [math.isfinite(norm) for norm in norms[:BAD_STEP]] == [True] * (BAD_STEP - 1) + [False]
    (path,) = stored_tokens(run)
    table = pq.read_table(path)
    ids = [rollout.id for rollout in run.rollouts(step=BAD_STEP)]
    assert set(ids) <= set(table["id"].to_pylist())
    assert min(table["step"].to_pylist()) >= BAD_STEP - 2
    assert all(rollout.tokens is None for rollout in run.rollouts(tokens=True))
    assert any(f"at step {BAD_STEP}: stored the tokens of steps" in text for text in run.attempts[-1]["warnings"])
    found = replay(run, BAD_STEP, tmp_path / "out" / f"checkpoint-{BAD_STEP - 1}", bisect="nan")
    worst = max(run.rollouts(step=BAD_STEP), key=lambda rollout: rollout.reward)
    assert worst.id in [*found.culprits, *found.also]
    siblings = {rollout.id for rollout in run.rollouts(step=BAD_STEP) if rollout.group == worst.group}
    assert {*found.culprits, *found.also} <= siblings, "answers to another prompt have finite gradients"


def test_a_training_without_faults_stores_no_tokens(tmp_path):
    _, run = train(tmp_path, explode=False)
    assert stored_tokens(run) == []
    assert all(rollout.tokens is None for rollout in run.rollouts(tokens=True))
    with pytest.raises(RunError, match="has no tokens of step 2"):
        replay(run, 2, tmp_path / "out" / "checkpoint-1")


def test_a_replay_from_tokens_stored_on_a_fault_is_that_of_the_step_before_too(tmp_path):
    _, run = train(tmp_path)
    again = replay(run, BAD_STEP - 1, tmp_path / "out" / f"checkpoint-{BAD_STEP - 2}")
    assert again.tier == "bit-equal"


def test_losses_are_the_same_as_without_recording(tmp_path):
    recorded, _ = train(tmp_path / "with", explode=False)
    alone = make(
        tmp_path / "alone", ["one two", "three", "four", "five six"], rows=dataset(16), max_steps=6, learning_rate=1e-4,
        scale_rewards="none", loss_type="grpo", save_strategy="steps", save_steps=1, save_only_model=True,
    )  # fmt: skip
    alone.train()
    losses = [
        [(row["loss"], row["grad_norm"]) for row in one.state.log_history if "loss" in row]
        for one in (recorded, alone)
    ]
    assert losses[0] == losses[1]


def test_a_number_far_from_what_it_was_is_a_fault_and_a_usual_change_is_not():
    watch = FaultWatch()
    for number in range(20):
        assert watch.look({"loss": 0.1 + 0.01 * (number % 3), "grad_norm": 1.0 + 0.1 * (number % 5)}) == ""
    assert watch.look({"loss": 0.11, "grad_norm": 1.9}) == ""
    assert watch.look({"loss": 0.11, "grad_norm": 40.0}) == "grad_norm is 40, and was about 1.2"
    assert watch.look({"loss": math.nan, "grad_norm": math.inf}) == "loss is nan and grad_norm is inf"
    assert watch.look({"loss": math.nan, "grad_norm": math.nan}) == "", "the same fault again"
    assert FaultWatch().look({"loss": 1.0, "grad_norm": 1e9}) == "", "there is nothing yet to compare with"


def test_memory_is_bounded_and_the_oldest_go_first(tmp_path):
    run = train(tmp_path, tokens=True, explode=False, steps=4)[1]
    tables = [run.table(step=step, columns=None).combine_chunks().to_batches()[0] for step in run.steps]
    deferred = DeferredTokens(most_bytes=1)
    for batch in tables:
        deferred.take(batch)
    assert deferred.write(tmp_path, "001-00000", 4) == [4]
    assert deferred.dropped == 12


@pytest.mark.parametrize("door", [RolloutPluginCallback, RolloutRecorder])
def test_another_value_is_refused(door):
    with pytest.raises(SetupError, match="tokens is 'sometimes'; accepted: True, False"):
        door(tokens="sometimes")
