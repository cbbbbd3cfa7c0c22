"""Evaluations after and between trainings, and several of one training, are kept whole and told apart."""

from collections import Counter, defaultdict, deque
from functools import partial

import pytest
from lives import Sink, numbered, warnings
from rig import GRPO, RLOO, dataset, make
from store_rig import Count, collected, runs

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.reading.export import export
from rollout_plugins.sinks.jsonl import JsonlSink

pytestmark = pytest.mark.slow


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
    assert run.health.drops == {}
    assert warnings(caplog) == []


class StaysInTraining(RLOO):
    """Its model is in training mode after each generation, also in evaluation, as with Unsloth's RLOO."""

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        self.model.train()
        return out


def test_evaluation_is_told_from_training_though_the_model_is_in_training_mode(tmp_path):
    trainer = make(
        tmp_path, cls=StaysInTraining, rows=numbered(8), eval_rows=numbered(8), eval_strategy="steps", eval_steps=1,
        max_steps=2, callbacks=[RolloutPluginCallback()],
    )  # fmt: skip
    trainer.train()
    trainer.evaluate()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    train = [r for r in stored if r.split == "train"]
    assert [(r.step, r.policy_step) for r in train] == [(1, 0)] * 4 + [(2, 1)] * 4
    assert len(stored) > len(train) + 4
    assert {(r.step, r.policy_step) for r in stored if r.split == "eval"} == {(1, 1), (2, 2)}


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
    stored, drops = (4, {"not_observed": made}) if cls is Hides else (4 + made, {})
    collected(lambda: [(len(run), run.health.drops) for run in runs(tmp_path)] == [(stored, drops)])
    sources = {r.marks["source"] for r in runs(tmp_path)[0].rollouts(split="eval")}
    assert sources == (set() if cls is Hides else {"the token ids that the trainer trains on"})


def test_a_training_after_an_evaluation_after_a_training_is_a_run_of_its_own(tmp_path):
    trainer = make(tmp_path, callbacks=[RolloutPluginCallback()], eval_rows=dataset(2))
    trainer.train()
    trainer.evaluate()
    trainer.train()
    assert [(len(run), len(run.attempts)) for run in runs(tmp_path)] == [(8, 1), (4, 1)]


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
