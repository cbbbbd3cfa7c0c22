"""AsyncGRPO and AsyncDistillation: every sample the trainer received is there, with what became of it."""

import logging
from functools import partial

import pytest
from async_rig import make_async, sample
from async_streams import KINDS, fates, forked, said, samples, trained, with_truth
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_received_is_stored_once_with_its_step_and_fate(tmp_path, tok, kind):
    trainer, run = trained(tmp_path, samples(tok, 20, kind), kind=kind, gradient_accumulation_steps=2)
    assert len(trainer.truth) == 16
    assert fates(run) == with_truth(trainer, range(20), {None: (2, "no: left_over")})
    assert (run.health.drops, run.health.untrained) == ({}, {"left_over": 4})
    assert len(list(run.rollouts())) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_stale_samples_are_stored_and_counted(tmp_path, tok, kind):
    stream = samples(tok, 15, kind)
    for number in (1, 7, 8):
        stream[number].model_version = -3
    trainer, run = trained(tmp_path, stream, kind=kind, max_staleness=3)
    assert trainer.state.log_history[0]["sample/dropped_stale_total"] >= 1
    rest = {1: (1, "no: stale"), 7: (1, "no: stale"), 8: (1, "no: stale"), None: (2, "no: left_over")}
    assert fates(run) == with_truth(trainer, range(15), rest)
    assert (run.health.drops, run.health.untrained) == ({}, {"stale": 3, "left_over": 4})
    assert {r.extra["staleness"] for r in run.rollouts() if r.marks["trained"] == "no: stale"} == {4}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_over_the_token_budget_are_stored_and_counted(tmp_path, tok, kind):
    stream = samples(tok, 60, kind)  # AsyncGRPO packs what they share only once
    stream[2] = KINDS[kind](tok, 2, "hello 2" + " four" * 90, group=0)
    trainer, run = trained(tmp_path, stream, kind=kind, token_budget=60)
    received = 60 - trainer.rollout_queue.qsize()
    truth = with_truth(trainer, range(received), {2: (1, "no: over_budget"), None: (None, "no: left_over")})
    truth["hello 2" + " four" * 90] = truth.pop("hello 2")
    assert {text: (None if "left" in fate else step, fate) for text, (step, fate) in fates(run).items()} == truth
    assert run.health.untrained["over_budget"] == 1


def test_a_stream_of_which_nothing_is_trained_does_not_pile_up(tmp_path, tok):
    stream = samples(tok, 700, version=-9)
    stream[255:255] = forked(tok, 999, group=999)  # across the border of what is handed over at once
    for row in stream[255:257]:
        row.model_version = -9
    trainer = make_async(tmp_path, stream)
    trainer.add_callback(callback := RolloutPluginCallback())
    with pytest.raises(RuntimeError, match="the worker died"):
        trainer.train()
    callback.flush(600)
    run = open_run(tmp_path / "out")
    stored = [r for r in run.rollouts() if "forks" not in r.marks]
    assert [said(r) for r in stored] == [f"hello {n}" for n in range(700)]
    assert len(run) == 701
    assert {r.marks["trained"] for r in run.rollouts()} == {"no: stale"}
    assert len({r.generation for r in run.rollouts()}) == 3


def test_a_sample_dropped_for_reasons_of_its_own_is_told_by_what_overtook_it(tmp_path, tok):
    class Lenient(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            args.max_staleness = 99  # too late: the dataset has the old limit

    stream = samples(tok, 13)
    stream[1].model_version = -9
    _, run = trained(tmp_path, stream, callbacks=[Lenient()])
    assert fates(run)["hello 1"] == (1, "no: dropped")
    assert {r.generation for r in run.rollouts(step=1)} == {0}
    assert (run.health.drops, run.health.untrained) == ({}, {"dropped": 1, "left_over": 4})


def test_versions_are_kept_as_the_updates_the_weights_had(tmp_path, tok):
    stream = samples(tok, 24)
    for number in range(12, 24):
        stream[number].model_version = 2 if number < 20 else 3
    _, run = trained(tmp_path, stream, max_steps=5, weight_sync_steps=2, max_staleness=9)
    by = {said(r): (r.extra["model_version"], r.policy_step) for r in run.rollouts()}
    assert by["hello 0"] == (1, 0)
    assert by["hello 12"] == (2, 2)
    assert by["hello 20"] == (3, 4)


def test_a_resumed_training_goes_on_in_the_run_with_the_updates_counted_on(tmp_path, tok):
    options = {"save_strategy": "steps", "save_steps": 1}
    trained(tmp_path, samples(tok, 12), **options)
    trainer = make_async(tmp_path, [sample(tok, n, group=n // 4) for n in range(20, 32)], max_steps=3, **options)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    run = open_run(tmp_path / "out")
    assert (run.info.resumed_from, run.info.attempt) == (1, 2)
    again = {said(r): (r.step, r.policy_step) for r in run.rollouts() if r.attempt == 2}
    assert again == {f"hello {n}": (2 if n < 24 else 3, 1) for n in range(20, 32)}
    assert [said(r) for r in run.rollouts() if r.attempt == 1] == [f"hello {n}" for n in range(4)]


def test_a_collator_nobody_knows_leaves_the_fate_open_and_says_so(tmp_path, tok, caplog):
    trainer = make_async(tmp_path, samples(tok, 12))
    original = trainer.get_train_dataloader

    def changed():
        loader = original()
        collator = loader.base_dataloader.collate_fn
        loader.base_dataloader.collate_fn = partial(collator)
        return loader

    trainer.get_train_dataloader = changed
    trainer.add_callback(RolloutPluginCallback())
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
    assert "partial has no method torch_call" in caplog.text
    run = open_run(tmp_path / "out")
    assert len(run) == 12
    assert {r.marks["trained"] for r in run.rollouts()} == {"unknown"}
    assert run.health.drops == {}


def test_micro_batches_that_look_different_leave_the_fate_open_from_then_on(tmp_path, tok):
    class Batches(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            collator = trainer.callback_handler.train_dataloader.collate_fn
            watched = collator.torch_call
            collator.torch_call = lambda examples: watched(iter(examples))

    trainer = make_async(tmp_path, samples(tok, 20), max_steps=4)
    trainer.add_callback(RolloutPluginCallback())
    trainer.add_callback(Batches())
    trainer.train()
    stored = fates(open_run(tmp_path / "out"))
    assert len(stored) == 20
    assert {stored[f"hello {n}"] for n in range(4)} == {(1, "yes")}
    assert {fate for _, fate in stored.values()} == {"yes", "unknown"}
