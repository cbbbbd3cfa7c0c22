"""Real training runs, with tools, failures and images, read back from real trackio and wandb."""

import json
import os
import sqlite3
import tempfile
import threading
from uuid import uuid4

os.environ.setdefault("WANDB_DIR", tempfile.mkdtemp(prefix="wandb-"))

import pytest
import trackio
import wandb
from PIL import Image
from processes import run_worker
from rig import call, dataset, make, tiny_model
from rollout_hookspecs import Step, hookimpl
from tools import broken, multiply, slow
from trackio.sqlite_storage import SQLiteStorage
from trackio.utils import MEDIA_DIR
from vlm import look, make_vlm, picture
from wandb_reader import history, rows

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.content.trace import default_trace
from rollout_plugins.sinks._traces import images_in
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.sinks.wandb import WandbSink

SCRIPT = [
    call("slow", {"x": 1}) + "\n" + call("multiply", {"a": 2, "b": 3}),
    "no tool",
    call("broken", {"x": 1}),
    call("nosuch", {}),
    *("done", "done", "done"),
]
TOOLS = [multiply, slow, broken]


def correct(completions, answer, **kwargs):
    return [1.0 if "multiply" in str(c) else 0.0 for c in completions]


def sometimes(completions, **kwargs):
    return [None if i % 2 else 0.5 for i in range(len(completions))]


def train(folder, callback, **config):
    options = {"max_steps": 3, "run_name": None, "rewards": [correct, sometimes], **config}
    trainer = make(folder, SCRIPT, tools=TOOLS, rows=dataset(answer=["6"] * 8), callbacks=[callback], **options)
    trainer.train()
    return trainer


def loss_points(project, run):
    """Return where the trainer's own loss stands in the chart: `[(chart step, optimizer step), …]`."""
    logged = SQLiteStorage.get_logs(project, run)
    return [(row["step"], row["train/global_step"]) for row in logged if "train/loss" in row]


@pytest.fixture
def project():
    return f"g{uuid4().hex[:10]}"


def test_trackio_in_the_trainers_run_shows_every_rollout_and_leaves_its_charts_alone(tmp_path, project):
    trackio_run = {"report_to": "trackio", "project": project}
    make(tmp_path / "plain", SCRIPT, tools=TOOLS, max_steps=3, run_name="plain", **trackio_run).train()
    train(tmp_path, RolloutPluginCallback(), run_name="ours", **trackio_run)
    assert loss_points(project, "ours") == loss_points(project, "plain") == [(1, 1), (2, 2), (3, 3)]
    stored = {r.id: r for r in open_run(tmp_path / "out").rollouts()}
    traces = {t["metadata"]["id"]: t for t in SQLiteStorage.get_traces(project, "ours")}
    assert len(traces) == len(stored) == 12
    assert set(SQLiteStorage.get_runs(project)) == {"plain", "ours"}
    for rollout_id, rollout in stored.items():
        trace = traces[rollout_id]
        assert (trace["step"], trace["key"]) == (rollout.step, "rollouts")
        assert trace["metadata"]["reward"] == rollout.reward
        assert trace["metadata"]["reward/sometimes"] == rollout.rewards["sometimes"]
        assert [span["name"] for span in trace["spans"]] == [c.name for c in rollout.tool_calls]
    both = next(t for t in traces.values() if len(t["spans"]) == 2)
    assert {span["name"]: span["output"] for span in both["spans"]} == {"slow": "2", "multiply": "6"}
    assert all(span["duration_ms"] > 0 for span in both["spans"])
    ids = {c["function"]["name"]: c["id"] for m in both["messages"] for c in m.get("tool_calls", ())}
    assert {m["name"]: m["tool_call_id"] for m in both["messages"] if m["role"] == "tool"} == ids
    assert {s["status"] for t in traces.values() for s in t["spans"]} == {"ok", "error", "unknown"}


def test_trackio_keeps_images_of_prompts_and_tools(tmp_path, project):
    script = [call("look", {"n": 1}), "nothing", "a picture"]
    trainer = make_vlm(
        tmp_path, dataset(4), script, tools=[look], rewards=sometimes, max_steps=2,
        callbacks=[RolloutPluginCallback()], report_to="trackio", project=project, run_name="seen",
    )  # fmt: skip
    trainer.train()
    traces = SQLiteStorage.get_traces(project, "seen")
    images = [i for t in traces for m in t["messages"] if isinstance(m["content"], list) for i in m["content"]]
    files = {image["file_path"] for image in images}
    assert len(images) == 4
    assert len(files) == 1
    with Image.open(MEDIA_DIR / files.pop()) as shown:
        assert shown.convert("RGB").tobytes() == picture(1).tobytes()
    stored = list(open_run(tmp_path / "out").rollouts())
    assert len(list(images_in([r.completion for r in stored]))) == 4


def test_trackio_without_report_to_has_a_run_of_its_own_with_one_empty_row_a_batch(tmp_path, project):
    train(tmp_path, RolloutPluginCallback([TrackioSink(project=project)]))
    run = open_run(tmp_path / "out")
    assert SQLiteStorage.get_runs(project) == [f"{run.name} · {run.info.id}"]
    assert len(SQLiteStorage.get_traces(project, f"{run.name} · {run.info.id}")) == 12
    assert trackio.context_vars.current_run.get() is None
    with sqlite3.connect(SQLiteStorage.get_project_db_path(project)) as db:
        assert [row[0] for row in db.execute("select metrics from metrics")] == [b"{}"] * 3


def test_wandb_in_the_trainers_run(tmp_path):
    train(tmp_path, RolloutPluginCallback(), report_to="wandb", run_name="ours")
    trainers_run = wandb.run
    trainers_run.finish()
    shown = rows(trainers_run.id)
    stored = {r.id: r for r in open_run(tmp_path / "out").rollouts()}
    assert {row["id"]: row["reward"] for row in shown} == {ident: r.reward for ident, r in stored.items()}
    assert {row["columns/answer"] for row in shown} == {"6"}
    assert {row["reward/sometimes"] for row in shown} == {0.5, None}
    logged = history(trainers_run.id)
    steps = [row["train/global_step"] for row in logged if any(key.startswith("rollouts/from_step") for key in row)]
    assert steps == [1, 2, 3]
    assert [row["train/global_step"] for row in logged if "train/loss" in row] == [1, 2, 3]


def test_wandb_without_report_to_opens_a_run_of_its_own(tmp_path):
    train(tmp_path, RolloutPluginCallback([WandbSink(project="own")]))
    assert wandb.run is None
    assert len(rows(open_run(tmp_path / "out").info.id)) == 12


class Raises:
    @hookimpl
    def export_traces(self, traces):
        raise ConnectionError("the server is away")


class Hangs:
    def __init__(self):
        self.was_called, self.may_return, self.gave_up = threading.Event(), threading.Event(), False

    @hookimpl
    def export_traces(self, traces):
        self.was_called.set()
        self.gave_up = not self.may_return.wait(600)


def export_again(stored, folder):
    """Send the rollouts of each generation from the store, as a later export does."""
    sink = JsonlSink(folder)
    sink.on_run_start(stored.info)
    rollouts = list(stored.rollouts())
    for generation in sorted({r.generation for r in rollouts}):
        batch = [r for r in rollouts if r.generation == generation]
        step = Step(step=batch[0].step, generation=generation, split=batch[0].split)
        sink.export_traces([default_trace(r) for r in batch], step)
    sink.on_run_end(stored.info)
    return (folder / "0.jsonl").read_text().splitlines()


def test_a_sink_that_raises_or_hangs_costs_no_step_no_rollout_and_no_other_sink(tmp_path, project):
    hangs = Hangs()
    callback = RolloutPluginCallback([Raises(), hangs, TrackioSink(project=project)])
    trainer = make(tmp_path, SCRIPT, tools=TOOLS, rewards=[sometimes], max_steps=3, callbacks=[callback])
    steps_while_it_hung = []
    step = trainer.training_step

    def training_step(*args, **kwargs):
        loss = step(*args, **kwargs)
        steps_while_it_hung.append(not hangs.gave_up)
        if len(steps_while_it_hung) == 3:
            hangs.may_return.set()
        return loss

    trainer.training_step = training_step
    trainer.train()
    assert hangs.was_called.is_set()
    assert steps_while_it_hung == [True] * 3
    stored = open_run(tmp_path / "out")
    assert len(stored) == 12
    assert len(SQLiteStorage.get_traces(project, f"{stored.name} · {stored.info.id}")) == 12
    assert len(export_again(stored, tmp_path / "again")) == 12


@pytest.mark.slow
def test_two_ranks_share_a_sink_or_have_one_each(tmp_path, project):
    run_worker("sinks", tmp_path, project, ranks=2, RIG_MODEL=tiny_model(tmp_path))
    stored = {r.id: r.rank for r in open_run(tmp_path / "out").rollouts()}
    lines = [json.loads(line) for line in (tmp_path / "lines/0.jsonl").read_text().splitlines()]
    assert {line["id"]: line["rank"] for line in lines} == stored
    assert len(stored) == 8
    for rank in (0, 1):
        mine = SQLiteStorage.get_traces(project, f"each-rank{rank}")
        assert {t["metadata"]["id"] for t in mine} == {ident for ident, r in stored.items() if r == rank}
