"""The callback in every way people add it, and through everything that happens to a run."""

import copy
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections import Counter, defaultdict, deque
from pathlib import Path
from types import MethodType

import cloudpickle
import dill
import pytest
from accelerate.state import GradientState
from rig import GRPO, RLOO, call, dataset, half, make, tiny_model
from store_rig import Count, until
from tools import multiply

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.dedup import Dedup
from rollout_plugins.plugins.images import Images
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.sinks.console import ConsoleSink
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.sinks.wandb import WandbSink
from rollout_plugins.store import write as writing
from rollout_plugins.store.finding import find_runs


def runs(folder):
    return [open_run(path) for path in find_runs(folder / "out-rollouts")]


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


@pytest.mark.parametrize("kind", [str, Path])
def test_resume_continues_the_run_and_supersedes_what_is_done_again(tmp_path, kind):
    def start(**config):
        trainer = make(tmp_path, save_strategy="steps", save_steps=2, **config)
        trainer.add_callback(RolloutPluginCallback())
        return trainer

    start(max_steps=3).train()
    start(max_steps=4).train(resume_from_checkpoint=kind(tmp_path / "out" / "checkpoint-2"))
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
    assert not (tmp_path / "out-rollouts").exists()


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
        if (tmp_path / "out-rollouts").exists():
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
    from rollout_plugins.hosts.kit.finding import checkpoint_being_resumed, step_being_resumed

    def train(self, resume_from_checkpoint):
        return checkpoint_being_resumed(self), step_being_resumed(self)

    trainer = make(tmp_path)
    assert train(trainer, True) == train(trainer, "somewhere") == (None, 0)


def logging_trainer(folder, *, on, **config):
    callbacks = [RolloutPluginCallback([Count()], sync=True)] if on else None
    return make(folder, max_steps=2, eval_rows=dataset(2), callbacks=callbacks, **config)


def test_what_log_does_to_its_dictionary_reaches_evaluate_and_train(tmp_path):
    trainers = [logging_trainer(tmp_path / str(on), on=on) for on in (False, True)]
    trained = [trainer.train().metrics.keys() for trainer in trainers]
    evaluated = [trainer.evaluate().keys() for trainer in trainers]
    assert trained[1] == trained[0] >= {"epoch", "train_loss"}
    assert evaluated[1] == evaluated[0] >= {"epoch", "eval_reward", "eval_rewards/half/mean"}
    assert trainers[1].state.log_history[-1]["eval_rollouts/count"] == 4.0


BY_METRIC = {
    "load_best_model_at_end": {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1},
    "save_strategy": {"save_strategy": "best"},
    "early stopping": {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1},
    "reduce_lr_on_plateau": {"lr_scheduler_type": "reduce_lr_on_plateau"},
}


@pytest.mark.parametrize("name", BY_METRIC)
def test_a_trainer_that_goes_by_a_metric_of_evaluation_has_it(tmp_path, name):
    from transformers import EarlyStoppingCallback

    options = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_reward", **BY_METRIC[name]}
    trainer = logging_trainer(tmp_path, on=True, **options)
    if name == "early stopping":
        trainer.add_callback(EarlyStoppingCallback(5))
    trainer.train()
    assert trainer.state.global_step == 2
    assert [entry["eval_rollouts/count"] for entry in trainer.state.log_history if "eval_loss" in entry] == [4.0, 4.0]
    assert trainer.state.best_metric == 0.5 or name == "reduce_lr_on_plateau"


def test_log_called_by_name_leaves_the_callers_own_values_alone(tmp_path):
    trainer = logging_trainer(tmp_path, on=True)
    trainer.add_callback(RolloutPluginCallback([Count()], sync=True, dir=tmp_path / "another"))
    mine = {}

    def log_mine(completions, **kwargs):
        mine.update({"rollouts/count": -1.0})
        trainer.log(logs=mine)
        return half(completions)

    trainer.reward_funcs[0] = log_mine
    trainer.train()
    assert {name: value for name, value in mine.items() if "rollouts" in name} == {"rollouts/count": -1.0}
    assert "epoch" in mine
    logged = [entry["rollouts/count"] for entry in trainer.state.log_history if "rollouts/count" in entry]
    assert logged == [-1.0, 4.0] * 2


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
    trainer = make(folder, gradient_checkpointing=False, **options)
    trainer._logs |= {name: defaultdict(deque) for name in ("rewards", "extra")}  # TRL's make theirs by a lambda
    return trainer


def wrapped(trainer):
    return [name for name in vars(trainer) if hasattr(type(trainer), name) and callable(getattr(trainer, name))]


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
    assert run.drops == {"not_begun": 4}


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
    assert callback.flush()
    assert sorted(len(run) for run in runs(tmp_path)) == [4, 4, 4]
    assert len(copied.truth) == len(trainer.truth) == 4


def test_a_shallow_copy_that_only_evaluates_has_its_own_run(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], eval_rows=dataset(2))
    trainer.evaluate()
    copied = copy.copy(trainer)
    copied.truth = []
    copied.evaluate()
    assert callback.flush()
    assert sorted(len(run) for run in runs(tmp_path)) == [4, 4]
    assert [run.drops for run in runs(tmp_path)] == [{}, {}]
    trainer.evaluate()
    assert callback.flush()
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
    assert sum(run.drops.values()) == 4


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
    assert next(open_run(tmp_path / "mine").rollouts(tokens=True)).tokens is not None


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
        callback.flush()
        clones.append([WAYS[way](plugin) for plugin in ours])
        return half(completions)

    callback = RolloutPluginCallback(ours)
    make(tmp_path, rewards=copies, max_steps=2, callbacks=[callback]).train()
    assert [[type(one) for one in made] for made in clones] == [[type(one) for one in ours]] * 2
    assert clones[1][-1]._most_rows == 7
    RolloutPluginCallback(clones[1])


def doubled(number):
    return 2.0 * number


def scored_in_forks(completions, **kwargs):
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map_async(doubled, range(len(completions))).get(30)


def test_a_reward_function_may_score_in_forked_processes(tmp_path):
    trainer = make(tmp_path, rewards=scored_in_forks, max_steps=3)
    trainer.add_callback(RolloutPluginCallback(["jsonl"]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [r.reward for r in run.rollouts()] == [0.0, 2.0, 4.0, 6.0] * 3
    assert run.attempts[0]["drops"] == {}


def test_a_disk_that_hangs_delays_the_end_of_training_by_no_more_than_the_limit(tmp_path, monkeypatch):
    works, entered, write = threading.Event(), threading.Event(), writing._Shard._write

    def hang(shard, buffer):
        entered.set()
        works.wait(300)
        write(shard, buffer)

    monkeypatch.setattr(writing._Shard, "_write", hang)
    callback = RolloutPluginCallback(end_seconds=1)
    trainer = make(tmp_path)
    trainer.add_callback(callback)
    began = time.monotonic()
    trainer.train()
    assert time.monotonic() - began < 15
    assert entered.is_set()
    assert callback._pipeline.counters.drops == {"not_finished_at_end": 4}
    works.set()
    until(lambda: open_run(tmp_path / "out").attempts[0]["ended"])
    run = open_run(tmp_path / "out")
    assert (len(run), run.drops) == (4, {})
