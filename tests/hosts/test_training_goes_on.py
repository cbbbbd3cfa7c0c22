"""Whatever fails or gets in the way, training goes on and what is lost is counted."""

import logging
import multiprocessing
import os
import threading
from collections import Counter

import pytest
from rig import half, make, tiny_model
from store_rig import runs, until
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.store import write as writing


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
        "SFTTrainer is not a supported trainer, so the callback does nothing"
    ]
    assert not (tmp_path / "out-rollouts").exists()


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


def test_what_is_stored_at_a_checkpoint_is_readable_while_training_goes_on(tmp_path):
    seen = []

    def peek(completions, **kwargs):
        callback.flush(600)
        if (tmp_path / "out-rollouts").exists():
            seen.append(len(open_run(tmp_path / "out")))
        return half(completions)

    callback = RolloutPluginCallback()
    trainer = make(tmp_path, rewards=peek, max_steps=3)
    trainer.add_callback(callback)
    trainer.train()
    assert seen == [0, 4, 8]


@pytest.mark.needs(part="scout")
def test_a_reward_that_changes_the_working_directory_costs_nothing(tmp_path, monkeypatch):
    from rollout_plugins.sinks.scout import ScoutSink

    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(tmp_path)

    def wanders(completions, **kwargs):
        os.chdir(away)
        return half(completions)

    sinks = [JsonlSink("lines"), ScoutSink("transcripts")]
    trainer = make(tmp_path, rewards=wanders, max_steps=3, output_dir="out", callbacks=[RolloutPluginCallback(sinks)])
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 12
    assert len((tmp_path / "lines" / "0.jsonl").read_text().splitlines()) == 12
    assert [*(tmp_path / "transcripts").rglob("*.parquet")]
    assert [path for path in away.iterdir() if path.name != "out"] == []


def test_a_process_that_may_start_no_thread_loses_and_counts_what_is_made_until_it_may(tmp_path, monkeypatch):
    start, steps = threading.Thread.start, []

    def scarce(thread):
        if len(steps) < 2 and thread.name.startswith("rollouts-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    def scored(completions, **kwargs):
        steps.append(1)
        return half(completions)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    make(tmp_path, callbacks=[RolloutPluginCallback()], rewards=scored, max_steps=3).train()
    (run,) = runs(tmp_path)
    assert Counter(r.step for r in run.rollouts()) == {2: 4, 3: 4}
    assert run.health.drops == {"not_begun": 4}


def doubled(number):
    return 2.0 * number


def scored_in_forks(completions, **kwargs):
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map_async(doubled, range(len(completions))).get(300)


def test_a_reward_function_may_score_in_forked_processes(tmp_path):
    trainer = make(tmp_path, rewards=scored_in_forks, max_steps=3)
    trainer.add_callback(RolloutPluginCallback(["jsonl"]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [r.reward for r in run.rollouts()] == [0.0, 2.0, 4.0, 6.0] * 3
    assert run.attempts[0]["drops"] == {}


def test_a_disk_that_hangs_delays_the_end_of_training_by_no_more_than_the_limit(tmp_path, monkeypatch):
    works, entered, write = threading.Event(), threading.Event(), writing.Journal._write

    def hang(shard, buffer):
        entered.set()
        works.wait(300)
        write(shard, buffer)

    monkeypatch.setattr(writing.Journal, "_write", hang)

    class Awaits(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            assert entered.wait(300)

    callback = RolloutPluginCallback(end_seconds=1)
    make(tmp_path, callbacks=[callback, Awaits()]).train()  # and the disk hangs still
    assert callback._shared.current.pipeline.counters.drops == {"not_finished_at_end": 4}
    works.set()
    until(lambda: open_run(tmp_path / "out").attempts[0]["ended"])
    run = open_run(tmp_path / "out")
    assert (len(run), run.health.drops) == (4, {})
