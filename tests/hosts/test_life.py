"""The callback's life on its trainers: kept alive by nothing, shared, between trainings, taken off, put on late."""

import gc
import os
import threading
import weakref
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from rig import GRPO, dataset, half, make
from store_rig import Count, collected, runs
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.engine.export import export
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.sinks.jsonl import JsonlSink

pytestmark = pytest.mark.slow


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "rollout_plugins"]


def assert_true_to(run, trainer):
    """Every rollout of a trainer of the rig, with what it was scored, beside its row and with its lengths."""
    stored = list(run.rollouts(superseded=True))
    assert [list(r.prompt) for r in stored] == [row["prompt"] for row in trainer.truth]
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert [r.columns["number"] for r in stored] == [row["row"]["number"] for row in trainer.truth]
    assert all(r.completion_tokens and r.finish in {"stop", "length"} for r in stored)
    assert run.drops == {}


def given(way):
    return [RolloutPluginCallback(["console"])] if way == "callbacks" else None


def add(trainer, way):
    """Add a callback in one of the possible ways, unless it was given; the callback."""
    if way == "class":
        trainer.add_callback(RolloutPluginCallback)
    elif way == "instance":
        trainer.add_callback(RolloutPluginCallback(["console"]))
    elif way == "trainer":
        trainer.add_callback(RolloutPluginCallback(trainer=trainer))
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, RolloutPluginCallback))


def numbered(rows):
    return dataset(rows, number=list(range(rows)))


# --- kept alive by nothing -------------------------------------------------------------------------------------------


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
    callback.flush()  # rollouts on their way to the store are still with their trainer
    model, trainer = weakref.ref(trainer.model), weakref.ref(trainer)
    collected(lambda: trainer() is model() is None)
    assert isinstance(callback, RolloutPluginCallback)


# --- one callback, several trainers ----------------------------------------------------------------------------------


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
        assert run.drops == {}


def test_two_trainers_that_train_at_the_same_time_have_each_their_run(tmp_path):
    callback, both = RolloutPluginCallback(end_seconds=5), threading.Barrier(2)

    def together(completions, **kwargs):
        both.wait(60)
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
    assert run.drops == {}


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


# --- between trainings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["callbacks", "class", "instance"])
def test_evaluation_after_training_is_kept_whole(tmp_path, way, caplog):
    callback = RolloutPluginCallback(tokens=True)
    trainer = make(
        tmp_path, callbacks=[callback] if way == "callbacks" else None, rows=numbered(8), eval_rows=numbered(8),
        per_device_eval_batch_size=8,
    )  # fmt: skip
    if way != "callbacks":
        trainer.add_callback(RolloutPluginCallback if way == "class" else callback)
    trainer.train()
    trainer.evaluate()
    trainer.predict(numbered(4))
    (run,) = runs(tmp_path)
    stored = list(run.rollouts())
    assert Counter(r.split for r in stored) == {"train": 4, "eval": 24}
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert all(r.columns for r in stored)
    assert all(r.completion_tokens and r.finish != "unknown" for r in stored)
    assert run.drops == {}
    assert warnings(caplog) == []


class Hidden:
    """A dictionary that cannot be known for one."""

    def __init__(self, values):
        self.get, self.items, self._values = values.get, values.items, values

    def __getitem__(self, name):
        return self._values[name]

    def __contains__(self, name):
        return name in self._values


class Hides(GRPO):
    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        return out if self.model.training else Hidden(out)


@pytest.mark.parametrize("cls", [GRPO, Hides])
def test_what_cannot_be_observed_after_training_is_counted_in_its_run(tmp_path, cls):
    trainer = make(tmp_path, cls=cls, eval_rows=dataset(4))
    callback = RolloutPluginCallback()
    trainer.add_callback(callback)
    trainer.train()
    for name in ("_calculate_rewards", "_generate"):  # as whoever puts a method of the class back
        del vars(trainer)[name]
    nothing = partial(deque, maxlen=0)
    trainer._logs = defaultdict(nothing, rewards=defaultdict(nothing), extra=defaultdict(nothing))
    trainer.evaluate()
    made = len(trainer.truth) - 4
    del callback, trainer
    gc.collect()
    (run,) = runs(tmp_path)
    if cls is Hides:
        assert len(run) == 4
        assert run.drops == {"not_observed": made}
    else:
        assert len(run) == 4 + made
        assert {r.marks["source"] for r in run.rollouts(split="eval")} == {"the token ids that the trainer trains on"}
        assert run.drops == {}


def test_a_training_after_an_evaluation_after_a_training_is_a_run_of_its_own(tmp_path):
    trainer = make(tmp_path, callbacks=[RolloutPluginCallback()], eval_rows=dataset(2))
    trainer.train()
    trainer.evaluate()
    trainer.train()
    assert [(len(run), len(run.attempts)) for run in runs(tmp_path)] == [(8, 1), (4, 1)]


# --- taken off -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["remove_callback", "pop_callback", "callback_handler.remove_callback"])
@pytest.mark.parametrize("what", ["class", "instance"])
def test_a_callback_that_is_taken_off_records_nothing_more(tmp_path, how, what):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], eval_rows=dataset(4))
    trainer.train()
    *path, method = how.split(".")
    getattr(getattr(trainer, *path) if path else trainer, method)(
        RolloutPluginCallback if what == "class" else callback
    )
    history = len(trainer.state.log_history)
    trainer.evaluate()
    trainer.train()
    (run,) = runs(tmp_path)
    assert len(run) == 4
    assert run.drops == {}
    assert not [name for name, value in vars(trainer).items() if hasattr(value, "_link")]
    assert not any("rollouts/" in name for entry in trainer.state.log_history[history:] for name in entry)


class Doing(TrainerCallback):
    """Does something in the middle of training, once."""

    def __init__(self, event, step, action):
        self._step, self._action = step, action
        setattr(self, event, self._act)

    def _act(self, args, state, control, **kwargs):
        if self._action is not None and state.global_step >= self._step:
            action, self._action = self._action, None
            action()


def test_taken_off_in_the_middle_of_training_and_put_on_again(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], max_steps=6)
    trainer.add_callback(Doing("on_step_begin", 2, lambda: trainer.remove_callback(callback)))
    trainer.add_callback(Doing("on_step_begin", 4, lambda: trainer.add_callback(callback)))
    trainer.train()
    (run,) = runs(tmp_path)
    assert run.steps == [1, 2, 5, 6]
    assert [a["attempt"] for a in run.attempts] == [1]
    assert run.attempts[0]["ended"]


def test_taken_off_in_the_middle_of_a_training_the_next_one_is_a_run_of_its_own(tmp_path):
    callback = RolloutPluginCallback()
    trainer = make(tmp_path, callbacks=[callback], max_steps=3)
    trainer.add_callback(Doing("on_step_begin", 1, lambda: trainer.remove_callback(callback)))
    trainer.train()
    trainer.add_callback(callback)
    trainer.train()
    assert [(run.steps, len(run.attempts)) for run in runs(tmp_path)] == [([1], 1), ([1, 2, 3], 1)]


# --- put on late -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["class", "instance"])
@pytest.mark.parametrize("event", ["on_step_begin", "on_substep_end", "on_step_end", "on_log", "on_save"])
def test_added_in_the_middle_of_training_records_from_then_on_and_says_so(tmp_path, kind, event, caplog):
    trainer = make(
        tmp_path, rows=numbered(16), max_steps=4, gradient_accumulation_steps=2, save_strategy="steps", save_steps=1
    )
    trainer.add_callback(Doing(event, 2, lambda: add(trainer, kind)))
    trainer.train()
    (run,) = runs(tmp_path)
    first = 4 if event == "on_substep_end" else 3
    assert run.steps == list(range(first, 5))
    truth = [row for row in trainer.truth if row["policy_step"] >= first - 1]
    assert [list(r.completion) for r in run.rollouts()] == [row["completion"] for row in truth]
    assert run.drops == {}
    assert run.attempts[0]["ended"]
    assert [text for text in warnings(caplog) if "in the middle of training, at step 2" in text]


# --- several evaluations ---------------------------------------------------------------------------------------------


class Sink:
    name = "sink"

    def __init__(self):
        self.traces, self.steps = [], []

    @hookimpl
    def export_traces(self, traces, step):
        self.traces += traces
        self.steps.append(step)


def test_rollouts_say_which_of_several_eval_datasets_they_are_of(tmp_path):
    sink = Sink()
    trainer = make(
        tmp_path, callbacks=[RolloutPluginCallback([Count(), sink], sync=True)], eval_strategy="steps", eval_steps=1,
        eval_rows={"maths": numbered(2), "code": numbered(4)},
    )  # fmt: skip
    trainer.train()
    run = open_run(tmp_path / "out")
    marks = [r.marks.get("dataset") for r in run.rollouts(split="eval")]
    assert marks == ["maths"] * 4 + ["code"] * 8
    assert {r.marks.get("dataset") for r in run.rollouts(split="train")} == {None}
    assert [step.dataset for step in sink.steps] == ["", "maths", "code", "code"]
    counts = [(k, v) for entry in trainer.state.log_history for k, v in entry.items() if k.endswith("rollouts/count")]
    assert counts == [("rollouts/count", 4.0), ("eval_maths_rollouts/count", 4.0), ("eval_code_rollouts/count", 4.0)]


def test_evaluation_under_another_prefix_is_named_and_measured_as_such(tmp_path):
    trainer = make(tmp_path, callbacks=[RolloutPluginCallback([Count()], sync=True)], eval_rows=dataset(2))
    trainer.evaluate(metric_key_prefix="held_out")
    trainer.evaluate()
    assert [r.marks.get("dataset") for r in open_run(tmp_path / "out").rollouts()] == ["held_out"] * 4 + [None] * 4
    counted = [{k: v for k, v in e.items() if k.endswith("/count")} for e in trainer.state.log_history]
    assert counted == [{"held_out_rollouts/count": 4.0}, {"eval_rollouts/count": 4.0}]


def test_the_cap_holds_for_each_evaluation(tmp_path):
    sink = Sink()
    trainer = make(
        tmp_path, callbacks=[RolloutPluginCallback([Cap(3), sink], sync=True)],
        eval_rows={"maths": numbered(4), "code": numbered(4)},
    )  # fmt: skip
    trainer.evaluate()
    trainer.evaluate()
    run = open_run(tmp_path / "out")
    sent = {trace.rollout_id for trace in sink.traces}
    kept = Counter((r.generation // 2, r.marks["dataset"]) for r in run.rollouts() if r.id in sent)
    assert kept == {(0, "maths"): 3, (1, "code"): 3, (2, "maths"): 3, (3, "code"): 3}


def test_the_cap_of_an_export_holds_for_each_generation_of_each_dataset(tmp_path):
    rows = {"maths": dataset(4), "code": dataset(4)}
    trainer = make(tmp_path, callbacks=[RolloutPluginCallback()], eval_rows=rows)
    trainer.evaluate()
    done = export(open_run(tmp_path / "out"), JsonlSink(tmp_path / "lines"), cap=3)
    assert (done.sent, done.capped) == (12, 4)


# --- forks -----------------------------------------------------------------------------------------------------------


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
    assert [run.drops for run in both] == [{}, {}]


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
