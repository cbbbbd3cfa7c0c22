"""Trainers, callbacks and plugins that are copied or pickled."""

import copy
import logging
import pickle
import threading
from collections import defaultdict, deque
from pathlib import Path
from types import MethodType

import cloudpickle
import dill
import pytest
from accelerate.state import GradientState
from rig import dataset, half, make
from store_rig import Count, runs

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.dedup import Dedup
from rollout_plugins.plugins.images import Images
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.sinks.console import ConsoleSink
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.sinks.wandb import WandbSink


def unpickled(value):
    """Plain pickle takes a bound method for one of its class, and so loses the `forward` that TRL gives a model."""
    made = pickle.loads(pickle.dumps(value))
    forward = vars(getattr(value, "model", value)).get("forward")
    if forward is not None:
        made.model.forward = MethodType(forward.__func__, made.model)
    return made


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": unpickled,
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
    "dill": lambda value: dill.loads(dill.dumps(value)),
}


def picklable(folder, **options):
    """A trainer as a fresh process has it: trainings leave weak references in accelerate's state."""
    GradientState._reset_state()
    trainer = make(folder, **options)
    trainer._logs |= {name: defaultdict(deque) for name in ("rewards", "extra")}  # TRL's make theirs by a lambda
    return trainer


def wrapped(trainer):
    return [name for name in vars(trainer) if hasattr(type(trainer), name) and callable(getattr(trainer, name))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.needs(part="redact")
@pytest.mark.slow
def test_a_copied_trainer_records_its_own_run(tmp_path, way):
    callback = RolloutPluginCallback([Count(), "redact", JsonlSink(), Cap(2)], sync=True)
    trainer = picklable(tmp_path, callbacks=[callback])
    assert wrapped(trainer)
    clone = WAYS[way](trainer)
    assert not wrapped(clone)
    assert clone._generate_and_score_completions.__self__ is clone
    trainer.train()
    clone.train()
    assert len(clone.truth) == len(trainer.truth) == 4
    first, second = sorted(runs(tmp_path), key=lambda run: run.attempts[0]["started"])
    assert [list(r.completion) for r in first.rollouts()] == [row["completion"] for row in trainer.truth]
    assert [list(r.completion) for r in second.rollouts()] == [row["completion"] for row in clone.truth]
    assert [len((Path(run.dir) / "jsonl" / "0.jsonl").read_text().splitlines()) for run in (first, second)] == [2, 2]
    assert clone.state.log_history[0]["rollouts/count"] == 4.0


def test_a_shallow_copy_of_a_trainer_has_the_callback_too_and_its_own_run(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback])
    trainer.train()
    copied = copy.copy(trainer)
    copied.truth = []
    copied.train()
    trainer.truth = []
    trainer.train()
    assert callback.flush(600)
    assert sorted(len(run) for run in runs(tmp_path)) == [4, 4, 4]
    assert len(copied.truth) == len(trainer.truth) == 4


def test_a_shallow_copy_that_only_evaluates_has_its_own_run(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], eval_rows=dataset(2))
    trainer.evaluate()
    copied = copy.copy(trainer)
    copied.truth = []
    copied.evaluate()
    assert callback.flush(600)
    assert sorted(len(run) for run in runs(tmp_path)) == [4, 4]
    assert [run.health.drops for run in runs(tmp_path)] == [{}, {}]
    trainer.evaluate()
    assert callback.flush(600)
    assert sorted(len(run) for run in runs(tmp_path)) == [4, 8]


def test_a_trainer_can_be_copied_while_it_trains_and_calls_its_own_methods(tmp_path):
    made = []

    def copies(completions, **kwargs):
        if not made:
            made.append(copy.deepcopy(trainer))
        return half(completions)

    trainer = make(tmp_path, rewards=copies, max_steps=2, callbacks=[RolloutPluginCallback(["dedup"])])
    trainer.train()
    assert len(open_run(tmp_path / "out")) == 8
    (clone,) = made
    assert not wrapped(clone)
    assert [type(one) for one in clone.reward_funcs] == [type(half)]
    clone.train()
    assert sorted(len(run) for run in runs(tmp_path)) == [8, 8]


class Cannot:
    """A plugin that can be neither copied nor pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    @hookimpl
    def on_rollout(self, rollout):
        return rollout


class Must(Cannot):
    required = True


@pytest.mark.parametrize("way", WAYS)
def test_a_plugin_that_cannot_be_copied_does_not_keep_its_trainer_from_being(tmp_path, way, caplog):
    trainer = picklable(tmp_path, callbacks=[RolloutPluginCallback([Cannot(), Count])])
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        clone = WAYS[way](trainer)
    assert "plugin 'cannot' cannot be" in caplog.text
    clone.train()
    assert [len(run) for run in runs(tmp_path)] == [4]


def test_a_copy_without_a_required_plugin_keeps_nothing_and_counts_it(tmp_path):
    trainer = picklable(tmp_path, callbacks=[RolloutPluginCallback([Must()])])
    unpickled(trainer).train()
    (run,) = runs(tmp_path)
    assert len(run) == 0
    assert sum(run.health.drops.values()) == 4


class Named(RolloutPluginCallback):
    """A callback with options of its own."""

    def __init__(self, folder):
        self.label = "mine"
        super().__init__(["dedup"], dir=folder, tokens=True)
        self.count = 0


@pytest.mark.parametrize("way", [*WAYS, "copy"])
def test_a_subclass_of_the_callback_is_copied_with_what_it_has(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    given = Named("mine")
    given.count = 3
    monkeypatch.chdir("/")
    clone = copy.copy(given) if way == "copy" else WAYS[way](given)
    assert (clone.label, clone.count) == ("mine", 3)
    trainer = make(tmp_path, callbacks=[clone])
    trainer.train()
    assert open_run(tmp_path / "mine").rollouts(tokens=True)[0].tokens is not None


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.needs(part="redact")
@pytest.mark.needs(part="scout")
@pytest.mark.slow
def test_every_plugin_of_ours_can_be_copied_while_it_works(tmp_path, monkeypatch, way):
    from rollout_plugins.plugins.redact import Redact
    from rollout_plugins.sinks.scout import ScoutSink

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    ours = [Cap(2), Dedup(), Redact(), Images(), Metrics(), JsonlSink(), ScoutSink(), ConsoleSink(), TrackioSink()]
    ours.append(WandbSink(max_rows=7))
    clones = []

    def copies(completions, **kwargs):
        callback.flush(600)
        clones.append([WAYS[way](plugin) for plugin in ours])
        return half(completions)

    callback = RolloutPluginCallback(ours)
    make(tmp_path, rewards=copies, max_steps=2, callbacks=[callback]).train()
    assert [[type(one) for one in made] for made in clones] == [[type(one) for one in ours]] * 2
    assert clones[1][-1]._most_rows == 7
    RolloutPluginCallback(clones[1])
