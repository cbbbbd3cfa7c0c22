"""The concern plugins in real GRPO and RLOO runs, images by a real vision-language trainer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from processes import run_worker
from rig import GRPO, RLOO, call, dataset, make
from tools import multiply
from trackio.sqlite_storage import SQLiteStorage
from vlm import look, make_vlm, picture, rows

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.content.hashing import pixel_hash
from rollout_plugins.plugins.alerts import Alerts
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.reading.find_runs import find_runs
from rollout_plugins.sinks.trackio import TrackioSink

HERE = Path(__file__).parents[1] / "support"
KEY = "hf_" + "aB3d" * 9


def hashes(*numbers):
    return {pixel_hash(picture(number)) for number in numbers}


def media(folder):
    return sorted(path for path in (folder / "out-rollouts").rglob("media/*"))


def recorded(trainer, **options):
    trainer.add_callback(RolloutPluginCallback(strict=True, **options))
    trainer.train()
    return open_run(trainer.args.output_dir)


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_images_of_the_dataset_become_one_file_each_over_siblings_and_epochs(tmp_path, cls):
    held = Counter()

    def reward(completions, image, **kwargs):
        held.update(id(each) for each in image)
        assert len({id(each) for each in image}) == len(image), "siblings hold objects of their own"
        return [float(i) for i in range(len(completions))]

    trainer = make_vlm(tmp_path, rows(image=[picture(i) for i in range(4)]), cls=cls, rewards=reward, max_steps=4)
    run = recorded(trainer)
    rollouts = list(run.rollouts())
    assert len(rollouts) == len(trainer.truth) == 16
    assert held
    for rollout, truth in zip(rollouts, trainer.truth, strict=True):
        shown, text = rollout.prompt[0]["content"]
        assert shown["image"].hash == rollout.columns["image"].hash == pixel_hash(truth["row"]["image"])
        assert text == truth["prompt"][0]["content"][1]
        assert rollout.images == (shown["image"],)
    assert {path.stem for path in media(tmp_path)} == hashes(0, 1, 2, 3)
    assert len(media(tmp_path)) == 4


def test_a_resumed_run_writes_no_image_again(tmp_path):
    data = rows(image=[picture(i) for i in range(4)])
    recorded(make_vlm(tmp_path, data, max_steps=2, save_strategy="steps", save_steps=2))
    before = {path: path.stat().st_mtime_ns for path in media(tmp_path)}
    trainer = make_vlm(tmp_path, data, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.add_callback(RolloutPluginCallback(strict=True))
    trainer.train(resume_from_checkpoint=True)
    assert {path: path.stat().st_mtime_ns for path in media(tmp_path)} == before
    assert {rollout.attempt for rollout in open_run(tmp_path / "out").rollouts()} == {1, 2}


def test_lists_of_images_and_empty_ones(tmp_path):
    data = rows(images=[[picture(0), picture(1)], [picture(2)], [], []])
    run = recorded(make_vlm(tmp_path, data, cls=RLOO, max_steps=2))
    found = {tuple(image.hash for image in rollout.images) for rollout in run.rollouts()}
    first, second, third = (pixel_hash(picture(i)) for i in range(3))
    assert found == {(first, second), (third,), ()}
    assert len(media(tmp_path)) == 3


def test_images_that_tools_return_beside_rows_without_any(tmp_path):
    data = rows(image=[picture(0), None, picture(2), None])
    script = [call("look", {"n": 1}), "nothing to see"]
    trainer = make_vlm(tmp_path, data, script, tools=[look], max_steps=2)
    run = recorded(trainer)
    looked = [rollout for rollout in run.rollouts() if len(rollout.completion) > 1]
    assert looked
    for rollout in looked:
        (block, text) = rollout.completion[1]["content"]
        assert block["image"].hash == pixel_hash(picture(1))
        assert text == {"type": "text", "text": "seen 1"}
        assert rollout.tool_calls[0].result[0]["image"] == block["image"]
        assert rollout.images[-1] == block["image"]
    assert {path.stem for path in media(tmp_path)} == hashes(0, 1, 2)
    assert {rollout.columns["image"] is None for rollout in run.rollouts()} == {True, False}


def test_training_is_the_same_with_and_without(tmp_path):
    data = rows(image=[picture(i) for i in range(4)])
    plain = make_vlm(tmp_path / "a", data, max_steps=3, temperature=1.0)
    plain.train()
    watched = make_vlm(tmp_path / "b", data, max_steps=3, temperature=1.0)
    recorded(watched, plugins=["redact", "dedup", "cap"])
    numbers = [[(e.get("loss"), e.get("grad_norm")) for e in t.state.log_history] for t in (plain, watched)]
    assert numbers[0] == numbers[1]
    weights = [t.model.state_dict() for t in (plain, watched)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


class Sink:
    def __init__(self):
        self.traces = []

    @hookimpl
    def export_traces(self, traces, step):
        self.traces += [(step.split, step.step, trace) for trace in traces]


def secret() -> str:
    """
    Read the configuration.
    """
    return f"HF_TOKEN={KEY}"


def test_all_concerns_in_one_run(tmp_path):
    script = [call("secret", {}), call("multiply", {"a": 2, "b": 3}), f"the key is {KEY}", "same", "same", "same"]
    data = dataset(4, note=[f"use {KEY}"] * 4)
    trainer = make(
        tmp_path, script, rows=data, eval_rows=data, tools=[secret, multiply], max_steps=3, per_device_train_batch_size=8,
        num_generations=4, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=8,
    )  # fmt: skip
    sink = Sink()
    run = recorded(trainer, plugins=[Cap(4), "redact", "dedup", Metrics("all"), sink])
    assert any(KEY in str(row) for row in trainer.truth), "the trainer itself sees the secret"
    assert len(list(run.rollouts())) == len(trainer.truth)
    assert not any(KEY in str(rollout) for rollout in run.rollouts())
    assert not any(KEY in str(trace) for _, _, trace in sink.traces)
    assert all(KEY.encode() not in path.read_bytes() for path in (tmp_path / "out-rollouts").rglob("*.json"))
    assert any("[REDACTED:huggingface]" in str(rollout.completion) for rollout in run.rollouts())
    shown = Counter((split, step) for split, step, _ in sink.traces)
    assert all(count <= 4 for count in shown.values())
    assert {split for split, _ in shown} == {"train", "eval"}
    marks = Counter(" ".join(rollout.marks) for rollout in run.rollouts(split="train"))
    assert sum(marks.values()) == 24
    logged = {name for entry in trainer.state.log_history for name in entry}
    for name in ("duplicated", "tools/secret/calls", "redacted/huggingface", "dedup/duplicates", "cap/kept", "turns"):
        assert f"rollouts/{name}" in logged
    assert any(name.startswith("eval") and name.endswith("rollouts/duplicated") for name in logged)


def test_default_on_and_removable(tmp_path):
    trainer = make_vlm(tmp_path, rows(image=[picture(i) for i in range(4)]))
    run = recorded(trainer, disable=["images", "metrics"])
    assert media(tmp_path) == []
    assert all(rollout.images == () for rollout in run.rollouts())
    assert not any("rollouts/truncated" in entry for entry in trainer.state.log_history)


@pytest.mark.slow
def test_two_ranks_share_files_and_the_cap(tmp_path):
    run_worker("plugins", tmp_path, ranks=2)
    rollouts = list(open_run(tmp_path / "out").rollouts())
    assert Counter(rollout.rank for rollout in rollouts) == {0: 8, 1: 8}
    assert {path.name for path in media(tmp_path)} == {f"{digest}.png" for digest in hashes(0, 1, 2, 3)}
    assert all(len(rollout.images) == 1 for rollout in rollouts)
    seen = [tuple(each) for rank in range(2) for each in json.loads((tmp_path / f"rank-{rank}.json").read_text())]
    assert len(set(seen)) == len(seen)
    assert all(0 < count <= 3 for count in Counter(step for step, _ in seen).values())
    ranks = {rollout.id: rollout.rank for rollout in rollouts}
    told = open_run(tmp_path / "out").table(["id", "selection.why"]).to_pylist()
    assert {row["id"] for row in told if row["selection.why"]} == {ident for _, ident in seen if ranks[ident] == 1}
    assert all(row["selection.why"].startswith("cap: ") for row in told if row["selection.why"])


# --- run after run --------------------------------------------------------------------------------------------------


class Alarm:
    """A sink that shows what it was given: rollouts, and alerts."""

    name = "alarm"

    def __init__(self):
        self.got, self.alerts = [], []

    @hookimpl
    def export_traces(self, traces):
        self.got += [trace.rollout_id for trace in traces]

    def alert(self, title, text):
        self.alerts.append(text)


def flat(completions, **kwargs):
    return [1.0] * len(completions)


def lines(folder):
    return [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]


@pytest.fixture
def trained_twice(tmp_path):
    """Trains, with plugins that remember, until it is done or breaks off; then once more in the same process."""

    def run(first, again, rewards=flat):
        alarm = Alarm()
        config = {"cap": {"max_per_step": 2}, "dedup": {"window": 100}}
        name = f"twice-{tmp_path.name}"
        rules = Alerts({"no_spread > 0.9 for 2 steps": print})
        plugins = [alarm, "dedup", "jsonl", "cap", TrackioSink(project=name, name="run"), rules, Fails()]
        trainer = make(tmp_path, ["same", "other"], rewards=rewards, max_steps=3, save_strategy="steps", save_steps=1)
        trainer.add_callback(RolloutPluginCallback(plugins, config=config))
        first(trainer)
        again(trainer)
        sent = [trace["metadata"]["id"] for trace in SQLiteStorage.get_traces(name, "run", sort="step_asc")]
        return alarm, lines(tmp_path / "out-rollouts"), sent

    return run


class Fails:
    """Taken out after three failures, for the rest of the run."""

    def __init__(self):
        self.failures = 0

    @hookimpl
    def rollout_metrics(self):
        self.failures += 1
        raise ValueError("for the test")


def test_every_plugin_begins_anew_when_a_script_trains_twice(tmp_path, trained_twice):
    alarm, written, sent = trained_twice(lambda trainer: trainer.train(), lambda trainer: trainer.train())
    runs = [open_run(path) for path in find_runs(tmp_path / "out-rollouts")]
    assert [len(run) for run in runs] == [12, 12]
    shown = Counter(ident.rsplit(".", 4)[0] for ident in alarm.got)
    assert shown == {run.info.id: 6 for run in runs}
    assert sorted(line["request_id"] for line in written) == sorted(alarm.got)
    assert sorted(sent) == sorted(alarm.got)
    assert sum("no_spread" in text for text in alarm.alerts) == 2
    assert [run.attempts[0]["plugin_errors"] for run in runs] == [{"fails": 3}] * 2
    assert runs[0].health.drops == runs[1].health.drops


@pytest.mark.slow
def test_every_plugin_begins_anew_when_a_training_breaks_off_and_resumes(tmp_path, trained_twice):
    calls = []

    def breaks(completions, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return flat(completions)

    def first(trainer):
        with pytest.raises(MemoryError):
            trainer.train()
        trainer._buffered_inputs = None

    alarm, written, sent = trained_twice(first, lambda t: t.train(resume_from_checkpoint=True), breaks)
    run = open_run(tmp_path / "out")
    assert [(a["attempt"], a["resumed_from"]) for a in run.attempts] == [(1, None), (2, 2)]
    shown = Counter(ident.rsplit(".", 3)[0] for ident in alarm.got)
    assert shown == {f"{run.info.id}.1": 6, f"{run.info.id}.2": 2}
    assert len(written) == 8
    assert sorted(sent) == sorted(alarm.got)
    assert sum(sum(a["rollouts"].values()) for a in run.attempts) == len(list(run.rollouts(superseded=True))) == 16
