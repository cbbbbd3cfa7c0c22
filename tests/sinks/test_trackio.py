import contextvars
import os
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
import trackio
from hypothesis import given
from rollout_hookspecs import Run, Step
from sink_rollouts import HOSTILE, batch, run_in, tools
from trackio.sqlite_storage import SQLiteStorage
from trackio.utils import MEDIA_DIR

from examples import thorough
from rollout_plugins.content.trace import default_trace
from rollout_plugins.errors import MissingExtraError, SetupError
from rollout_plugins.sinks.trackio import TrackioSink

TRACES = [default_trace(r) for r in batch()]


@pytest.fixture
def project():
    return f"p{uuid4().hex[:10]}"


def send(sink, run, *steps, traces=TRACES):
    sink.on_run_start(run)
    for step in steps or (Step(step=3),):
        sink.export_traces(traces, step)
    sink.on_run_end(run)


def traces_in(project, run="tiny · run-1", **query):
    found = SQLiteStorage.get_traces(project, run, sort="step_asc", **query)
    return {trace["metadata"]["id"]: trace for trace in found}


def metric_rows(project):
    with sqlite3.connect(SQLiteStorage.get_project_db_path(project)) as db:
        return db.execute("select run_name, step, metrics from metrics order by id").fetchall()


def on_another_thread(work, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *args).result(600)


# --- what people see -----------------------------------------------------------------------------------------------


def test_rollouts_become_traces_of_their_step_and_evaluation_has_its_own_key(tmp_path, project):
    send(TrackioSink(project=project), run_in(tmp_path), Step(step=3), Step(step=5, split="eval"))
    found = SQLiteStorage.get_traces(project, "tiny · run-1")
    assert {(t["key"], t["step"]) for t in found} == {("rollouts", 3), ("eval_rollouts", 5)}
    assert len(found) == 8
    first = traces_in(project, step=3)["r-tools"]
    known = TRACES[0].metadata
    assert first["metadata"] == {k: known[k] for k in known if known[k] is not None or k.startswith("reward")}
    assert (known["error"], first["metadata"]["reward/format"]) == (None, None)


def test_a_batch_is_one_call_and_leaves_one_empty_metrics_row(tmp_path, project):
    send(TrackioSink(project=project), run_in(tmp_path), Step(step=1), Step(step=2))
    assert metric_rows(project) == [("tiny · run-1", 1, b"{}"), ("tiny · run-1", 2, b"{}")]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("tool:weather", 1),
        ("finish tool_limit", 1),
        ("[reward 1]", 1),
        ("[no reward", 1),
        ("best of its group", 4),
        ("zürich", 1),
        ("environment crashed", 1),
    ],
)
def test_the_search_box_finds_rollouts_by_their_facts(tmp_path, project, words, ids):
    send(TrackioSink(project=project), run_in(tmp_path))
    assert len(traces_in(project, search=words)) == ids


def test_calls_and_results_share_ids_and_operations_show_latency_and_errors(tmp_path, project):
    send(TrackioSink(project=project), run_in(tmp_path))
    found = traces_in(project)
    messages = found["r-tools"]["messages"]
    asked = {c["function"]["name"]: c["id"] for c in messages[2]["tool_calls"]}
    answered = {m["name"]: m["tool_call_id"] for m in messages if m["role"] == "tool"}
    assert asked == answered
    multiply, weather = found["r-tools"]["spans"]
    assert (multiply["input"], multiply["output"], multiply["duration_ms"]) == ({"a": 2, "b": 3}, "6", 3.0)
    assert (weather["kind"], weather["output"], weather["duration_ms"]) == ("tool", "rain", 412.5)
    broken, nosuch, cut = found["r-failing"]["spans"]
    assert (broken["status"], broken["error"], broken["duration_ms"]) == ("error", "backend down", 1500.0)
    assert (nosuch["status"], nosuch["error"], nosuch["input"]) == ("unknown", "no such tool", "{not json")
    assert (cut["status"], cut["output"], "error" in cut) == ("not_run", "cut by the tool limit", False)


def test_text_is_text_and_shows_reasoning_and_bare_calls(tmp_path, project):
    send(TrackioSink(project=project), run_in(tmp_path))
    found = traces_in(project)
    assert found["r-tools"]["messages"][2]["content"] == (
        '<think>\nTwo tools.\n</think>\n\n→ multiply(a=2, b=3)\n→ weather(city="Zürich")'
    )
    assert found["r-pictured"]["messages"][-1]["content"] == "A field."
    shown = [m["content"] for trace in found.values() for m in trace["messages"]]
    parts = [part for content in shown if isinstance(content, list) for part in content]
    assert {part["_type"] for part in parts} == {"trackio.image"}


def test_images_show_after_their_text_and_are_stored_once(tmp_path, project):
    send(TrackioSink(project=project), run_in(tmp_path), Step(step=1), Step(step=2), Step(step=3, split="eval"))
    messages = traces_in(project, step=2)["r-pictured"]["messages"]
    assert [(m["role"], m["content"] if isinstance(m["content"], str) else "…") for m in messages] == [
        ("user", "[reward 0.5]\n[IMAGE]\nWhat?"),
        ("user", "…"),
        ("assistant", "→ crop(box=[0, 0, 9, 9])"),
        ("tool", "[IMAGE]\ncropped"),
        ("tool", "…"),
        ("assistant", "A field."),
    ]
    (image,) = messages[1]["content"]
    assert (MEDIA_DIR / image["file_path"]).read_bytes() == (tmp_path / "media/shape.png").read_bytes()
    (span,) = traces_in(project, step=2)["r-pictured"]["spans"]
    assert span["output"]["images"][0]["_type"] == "trackio.image"
    stored = [path.suffix for path in (MEDIA_DIR / project).rglob("*") if path.is_file()]
    assert sorted(stored) == [".png", ".webp"]


def test_an_image_without_pixels_is_words_and_costs_nothing_else(tmp_path, project):
    run = run_in(tmp_path)
    (tmp_path / "media/square.webp").unlink()
    send(TrackioSink(project=project), run)
    found = traces_in(project)
    assert found["r-rejected"]["messages"][0]["content"] == (
        "[no reward, finish error]\n[IMAGE: remote, not fetched, https://x.test/a.png]\nAnd?"
    )
    assert found["r-pictured"]["spans"][0]["output"] == "[IMAGE: file is missing]\ncropped"
    assert len(found) == 4


def test_rejected_rollouts_and_missing_rewards_appear_as_such(tmp_path, project):
    send(TrackioSink(project=project), run_in(tmp_path))
    facts = traces_in(project)["r-rejected"]["metadata"]
    assert (facts["status"], facts["error"], facts.get("reward")) == ("error", "environment crashed", None)
    assert traces_in(project)["r-failing"]["metadata"]["status"] == "ok"


@given(HOSTILE)
@thorough
def test_one_bad_value_never_costs_another_rollout(tmp_path_factory, rollout):
    project = f"h{uuid4().hex[:10]}"
    folder = tmp_path_factory.mktemp("hostile")
    send(TrackioSink(project=project), run_in(folder), traces=[default_trace(rollout), default_trace(tools())])
    found = SQLiteStorage.get_traces(project, "tiny · run-1")
    assert len(found) == 2
    assert any(trace["metadata"]["id"] == "r-tools" for trace in found)


# --- whose run -----------------------------------------------------------------------------------------------------


def in_a_training(project, work):
    """What transformers' TrackioCallback does on the training thread, with `work` between."""

    def training():
        run = trackio.init(project=project, name="theirs", resume="allow", auto_log_cpu=False, auto_log_gpu=False)
        trackio.config.update({"lr": 0.1})
        trainer = SimpleNamespace(args=SimpleNamespace(report_to=["trackio"], run_name="theirs", project=project))
        work(run, trainer)
        if trackio.context_vars.current_run.get() is not None:
            trackio.finish()

    contextvars.copy_context().run(training)


def test_in_a_trainers_run_traces_join_it_and_its_own_step_count_stays_right(tmp_path, project):
    def training(run, trainer):
        sink = TrackioSink()
        sink.bind(trainer)
        on_another_thread(sink.on_run_start, run_in(tmp_path))
        for step in (1, 2, 3):
            trackio.log({"profiling": 0.1}, step=step - 1)  # what TRL does while it generates
            on_another_thread(sink.export_traces, TRACES, Step(step=step))
            trackio.log({"loss": 1.0 / step, "train/global_step": step})  # what TrackioCallback does in on_log
        on_another_thread(sink.on_run_end, run_in(tmp_path))

    in_a_training(project, training)
    steps = [
        (row["train/global_step"], row["step"]) for row in SQLiteStorage.get_logs(project, "theirs") if "loss" in row
    ]
    assert steps == [(1, 1), (2, 2), (3, 3)]
    assert SQLiteStorage.get_runs(project) == ["theirs"]
    assert {trace["step"] for trace in SQLiteStorage.get_traces(project, "theirs")} == {1, 2, 3}
    assert SQLiteStorage.get_run_config(project, "theirs")["lr"] == 0.1


def test_what_arrives_after_the_trainer_finished_its_run_is_still_kept(tmp_path, project):
    def training(run, trainer):
        sink = TrackioSink()
        sink.bind(trainer)
        sink.on_run_start(run_in(tmp_path))
        sink.export_traces(TRACES, Step(step=1))
        trackio.finish()
        on_another_thread(sink.export_traces, TRACES, Step(step=2))
        on_another_thread(sink.on_run_end, run_in(tmp_path))

    in_a_training(project, training)
    assert len(SQLiteStorage.get_traces(project, "theirs")) == 8
    assert SQLiteStorage.get_run_config(project, "theirs")["lr"] == 0.1


def test_a_sink_with_a_name_of_its_own_leaves_the_trainers_run_alone(tmp_path, project):
    def training(run, trainer):
        sink = TrackioSink(name="mine")
        sink.bind(trainer)
        send(sink, run_in(tmp_path))
        assert trackio.context_vars.current_run.get() is run
        assert trackio.config is run.config
        trackio.log({"loss": 1.0})

    in_a_training(project, training)
    assert set(SQLiteStorage.get_runs(project)) == {"theirs", "mine"}
    assert SQLiteStorage.get_traces(project, "theirs") == []
    assert len(SQLiteStorage.get_traces(project, "mine")) == 4


def test_a_run_of_its_own_is_taken_up_again(tmp_path, project):
    for step in (1, 2):
        send(TrackioSink(project=project), run_in(tmp_path), Step(step=step))
    assert SQLiteStorage.get_runs(project) == ["tiny · run-1"]
    assert len(SQLiteStorage.get_traces(project, "tiny · run-1")) == 8


def test_a_run_of_its_own_is_called_by_model_and_folder_and_runs_of_one_name_stay_apart(tmp_path, project):
    ids = ["20260101-000000-aaaaaa", "20260101-000000-bbbbbb"]
    for chance in ids:
        send(
            TrackioSink(project=project),
            Run(id=chance, model="org/tiny", dir=str(tmp_path / "shop-rollouts" / chance)),
        )
    assert set(SQLiteStorage.get_runs(project)) == {f"tiny · shop · {chance}" for chance in ids}


def test_without_a_trainer_nothing_stays_open_and_ending_twice_is_fine(tmp_path, project):
    sink, run = TrackioSink(project=project), run_in(tmp_path)
    threads = set(threading.enumerate())
    send(sink, run)
    sink.on_run_end(run)
    assert trackio.context_vars.current_run.get() is None
    assert set(threading.enumerate()) <= threads


def test_each_rank_has_a_run_of_its_own_when_asked(tmp_path, project):
    for rank in (0, 1):
        run = run_in(tmp_path, rank=rank, world_size=2)
        send(TrackioSink(project=project, scope="rank"), run, Step(step=1, rank=rank, world_size=2, gathered=False))
    assert set(SQLiteStorage.get_runs(project)) == {"tiny · run-1-rank0", "tiny · run-1-rank1"}
    assert traces_in(project, "tiny · run-1-rank1")["r-tools"]["metadata"]["ranks"] == "only rank 1 of 2"


def test_an_alert_reaches_the_dashboard(tmp_path, project, capsys):
    sink = TrackioSink(project=project)
    sink.on_run_start(run_in(tmp_path))
    sink.alert("rewards collapsed", "all rollouts of step 9 got 0")
    sink.on_run_end(run_in(tmp_path))
    (alert,) = SQLiteStorage.get_alerts(project)
    assert (alert["title"], alert["text"]) == ("rewards collapsed", "all rollouts of step 9 got 0")


def test_the_target_names_the_place(tmp_path, project):
    sink = TrackioSink(project=project, name="a")
    sink.on_run_start(run_in(tmp_path))
    sink.export_traces(TRACES, Step(step=1))
    assert sink.target == f"trackio:{project}/a"
    sink.on_run_end(run_in(tmp_path))


# --- set up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"project": ""}, {"name": 3}, {"space_id": " "}, {"scope": "every"}])
def test_options_that_make_no_sense_are_refused_at_once(options):
    with pytest.raises(SetupError, match=f"{next(iter(options))}="):
        TrackioSink(**options)


def test_a_missing_trackio_is_one_line_that_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rollout-plugins\[trackio\]'"):
        TrackioSink()


def test_media_is_where_the_tests_put_it():
    assert Path(os.environ["TRACKIO_DIR"]) in MEDIA_DIR.parents
