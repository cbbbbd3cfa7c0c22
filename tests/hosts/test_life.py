"""The callback keeps no trainer alive, serves several, and is forked."""

import gc
import os
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from lives import add, assert_true_to, given, numbered
from processes import run_worker
from rig import dataset, half, make
from store_rig import collected, runs

from rollout_plugins import RolloutPluginCallback, hookimpl

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["callbacks", "class", "instance", "trainer"])
@pytest.mark.parametrize("use", ["train", "evaluate", "both", "nothing", "broken off"])
def test_a_trainer_that_is_deleted_is_freed(tmp_path, way, use):

    def broken(completions, **kwargs):
        raise MemoryError

    rewards = broken if use == "broken off" else half
    trainer = make(tmp_path, eval_rows=dataset(4), callbacks=given(way), rewards=rewards)
    callback = add(trainer, way)
    if use in {"train", "both"}:
        trainer.train()
    if use in {"evaluate", "both"}:
        trainer.evaluate()
    if use == "broken off":
        with suppress(MemoryError):
            trainer.train()
    callback.flush(600)  # rollouts on their way to the store are still with their trainer
    model, trainer = weakref.ref(trainer.model), weakref.ref(trainer)
    collected(lambda: trainer() is model() is None)
    assert isinstance(callback, RolloutPluginCallback)


def test_a_notebook_cell_that_is_run_twice_records_two_runs(tmp_path):
    callback = RolloutPluginCallback()
    for _ in range(2):
        trainer = make(tmp_path, callbacks=[callback], rows=numbered(8), max_steps=2)
        trainer.train()
    first, second = runs(tmp_path)
    assert len(first) == len(second) == 8
    assert first.info.attempt == second.info.attempt == 1
    assert_true_to(second, trainer)


def test_a_trainer_that_follows_a_freed_one_counts_its_own(tmp_path):
    callback = RolloutPluginCallback()
    for _ in range(2):
        trainer = make(tmp_path, callbacks=[callback])
        trainer.train()
        del trainer
        gc.collect()
    assert [run.attempts[0]["rollouts"] for run in runs(tmp_path)] == [{"train": 4}, {"train": 4}]


def test_two_live_trainers_used_alternately_have_each_their_run(tmp_path):
    callback = RolloutPluginCallback()
    trainers = [
        make(tmp_path / name, callbacks=[callback], rows=numbered(8), eval_rows=numbered(4)) for name in ("a", "b")
    ]
    for trainer in trainers:
        trainer.evaluate()
    for trainer in trainers:
        trainer.train()
    for trainer in trainers:
        trainer.evaluate()
    make(tmp_path, callbacks=[callback]).train()
    for name, trainer in zip(("a", "b"), trainers, strict=True):
        (run,) = runs(tmp_path / name)
        assert Counter(row["split"] for row in trainer.truth) == {"eval": 16, "train": 4}
        assert Counter(r.split for r in run.rollouts()) == {"eval": 16, "train": 4}
        assert len({r.id for r in run.rollouts()}) == 20
        assert [a["attempt"] for a in run.attempts] == [1]
        assert run.attempts[0]["rollouts"] == {"eval": 16, "train": 4}
        assert run.health.drops == {}


def test_two_trainers_that_train_at_the_same_time_have_each_their_run(tmp_path):
    callback, both = RolloutPluginCallback(), threading.Barrier(2)

    def together(completions, **kwargs):
        both.wait(300)
        return half(completions)

    trainers = [
        make(tmp_path / name, callbacks=[callback], rows=numbered(8), rewards=together, max_steps=12)
        for name in ("a", "b")
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda trainer: trainer.train(), trainers))
    for name, trainer in zip(("a", "b"), trainers, strict=True):
        (run,) = runs(tmp_path / name)
        assert_true_to(run, trainer)
        assert [a["attempt"] for a in run.attempts] == [1]


def test_a_trainer_that_evaluates_inside_another_ones_training_has_its_own_run(tmp_path):
    callback = RolloutPluginCallback()
    inner = make(tmp_path / "inner", callbacks=[callback], eval_rows=numbered(2))

    def judged(completions, **kwargs):
        inner.evaluate()
        return half(completions)

    outer = make(tmp_path / "outer", callbacks=[callback], rows=numbered(8), rewards=judged, max_steps=2)
    outer.train()
    (run,) = runs(tmp_path / "outer")
    assert_true_to(run, outer)
    (run,) = runs(tmp_path / "inner")
    assert_true_to(run, inner)
    assert len(run) == 8


def test_a_reward_function_that_evaluates_its_own_trainer_mixes_nothing(tmp_path):
    scored = []

    def plain(completions, **kwargs):
        scored.append(len(scored))
        return [float(scored[-1])] * len(completions)

    def evaluates(completions, **kwargs):
        if len(scored) == 1:
            trainer.evaluate()
        return half(completions)

    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], rewards=[plain, evaluates], eval_rows=numbered(2), max_steps=2)
    trainer.train()
    (run,) = runs(tmp_path)
    found = [(r.split, r.step, r.rewards["plain"], r.rewards["evaluates"]) for r in run.rollouts()]
    expected = [("train", 1, 0.0), ("eval", 0, 1.0), ("train", 2, 2.0)]
    assert sorted(found) == sorted((*one, i % 2) for one in expected for i in range(4))
    assert run.health.drops == {}


def test_a_retry_with_a_smaller_trainer_is_a_run_of_its_own(tmp_path):
    callback, calls = RolloutPluginCallback(), []

    def too_large(completions, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return half(completions)

    trainer = make(tmp_path, callbacks=[callback], rewards=too_large, max_steps=2)
    with pytest.raises(MemoryError):
        trainer.train()
    trainer = make(
        tmp_path, callbacks=[callback], rows=numbered(8), rewards=too_large, max_steps=2, per_device_train_batch_size=2
    )
    trainer.train()
    first, second = runs(tmp_path)
    assert [(r.step, r.error) for r in first.rollouts()] == [(1, None)] * 4 + [(2, "MemoryError")] * 4
    assert [a["attempt"] for a in second.attempts] == [1]
    assert_true_to(second, trainer)
    assert first.attempts[0]["ended"]


def test_sinks_hear_of_one_run_at_a_time(tmp_path):
    told = []

    class Sink:
        name = "told"

        @hookimpl
        def on_run_start(self, run):
            told.append(("start", run.id))

        @hookimpl
        def export_traces(self, traces):
            told.append(("traces", traces[0].rollout_id.split(".")[0]))

        @hookimpl
        def on_run_end(self, run):
            told.append(("end", run.id))

    callback = RolloutPluginCallback([Sink()])
    trainers = [make(tmp_path / name, callbacks=[callback], eval_rows=dataset(2)) for name in ("a", "b")]
    for trainer in (*trainers, *trainers):
        trainer.evaluate()
    trainers[0].train()
    ids = [runs(tmp_path / name)[0].info.id for name in ("a", "b")]
    a, b = ([(what, ident) for what in ("start", "traces", "end")] for ident in ids)
    assert told == [*a, *b, *a, *b, *a]


@pytest.mark.parametrize("before", ["evaluate", "train"])
@pytest.mark.parametrize("after", ["evaluate", "train"])
def test_a_fork_of_a_process_that_recorded_has_a_run_of_its_own(tmp_path, before, after):
    trainer = make(tmp_path, callbacks=[RolloutPluginCallback()], rows=numbered(8), eval_rows=numbered(4))
    getattr(trainer, before)()
    theirs = len(trainer.truth)
    child = os.fork()
    if not child:
        try:
            getattr(trainer, after)()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    trainer.evaluate()
    both = runs(tmp_path)
    assert sorted(len(run) for run in both) == sorted([theirs + 8, 8 if after == "evaluate" else 4])
    assert [run.health.drops for run in both] == [{}, {}]


@pytest.mark.slow
@pytest.mark.parametrize("made", ["before the fork", "in the child"])
def test_a_child_of_multiprocessing_whose_training_breaks_off_stores_everything(tmp_path, made):
    assert "MemoryError" in run_worker("forked", tmp_path, made, code=1).stderr
    (run,) = runs(tmp_path)
    assert (len(list(run.rollouts())), run.health.drops) == (4, {})
    assert all(attempt["ended"] for attempt in run.attempts)


def test_a_fork_that_leaves_a_reward_function_takes_no_rollouts_along(tmp_path):
    def forks(completions, **kwargs):
        child = os.fork()
        if not child:
            raise SystemExit
        assert os.waitpid(child, 0)[1] == 0
        return half(completions)

    here = os.getpid()
    trainer = make(tmp_path, callbacks=[RolloutPluginCallback()], rows=numbered(8), rewards=forks)
    try:
        trainer.train()
    finally:
        if os.getpid() != here:
            gc.collect()
            os._exit(0)
    (run,) = runs(tmp_path)
    assert_true_to(run, trainer)
