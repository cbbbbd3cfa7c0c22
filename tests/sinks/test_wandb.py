import json
import logging
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DATA_DIR=tempfile.mkdtemp(prefix="wandb-data-"))
os.environ.setdefault("WANDB_DIR", tempfile.mkdtemp(prefix="wandb-"))

import pytest
import wandb
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image as Pictures
from rollout_hookspecs import Step
from sink_rollouts import HOSTILE, Hostile, batch, pictured, rejected, run_in, tools
from wandb_reader import folder_of, history, records, rows, tables

from rollout_plugins.content.trace import default_trace
from rollout_plugins.errors import MissingExtraError, SetupError
from rollout_plugins.sinks import wandb as module
from rollout_plugins.sinks.wandb import WandbSink
from rollout_plugins.sinks.wandb.table_columns import shorten

TRACES = [default_trace(r) for r in batch()]


def start(folder, **changes):
    """Return a run with a unique id: wandb reads its settings once per process, so all tests share one folder."""
    return run_in(folder, id=f"r{uuid4().hex[:12]}", **changes)


def send(sink, run, *steps, traces=TRACES):
    sink.on_run_start(run)
    for step in steps or (Step(step=3),):
        sink.export_traces(traces, step)
    sink.on_run_end(run)
    return run.id


def artifacts():
    return {path: path.read_bytes() for path in Path(os.environ["WANDB_DATA_DIR"]).rglob("*") if path.is_file()}


# --- what people see -----------------------------------------------------------------------------------------------


def test_each_step_adds_its_rows_and_keeps_the_earlier_ones(tmp_path):
    run = send(WandbSink(), start(tmp_path), Step(step=1), Step(step=2), Step(step=2, split="eval"))
    increments = tables(run)
    assert list(increments) == [
        ("eval_rollouts/from_step_000002", 2),
        ("rollouts/from_step_000001", 0),
        ("rollouts/from_step_000001", 1),
    ]
    assert {len(added) for added in increments.values()} == {4}


def test_a_hundred_steps_fill_a_table_and_the_next_begins_another(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INCREMENTS", 3)
    run = send(WandbSink(), start(tmp_path), *(Step(step=step) for step in range(1, 9)), traces=TRACES[:1])
    assert sorted({key for key, _ in tables(run)}) == [f"rollouts/from_step_{n:06d}" for n in (1, 4, 7)]
    assert len(rows(run)) == 8
    assert module.INCREMENTS == 3


def test_rows_whose_log_failed_do_not_arrive_with_the_next(tmp_path):
    sink, run = WandbSink(), start(tmp_path)
    sink.on_run_start(run)
    sink.export_traces(TRACES, Step(step=1))
    sender = sink._open()
    log, sender.log = sender.log, lambda _: next(iter(()))
    with pytest.raises(StopIteration):
        sink.export_traces(TRACES, Step(step=2))
    sender.log = log
    sink.export_traces(TRACES[:1], Step(step=2))
    sink.on_run_end(run)
    assert len(rows(run.id)) == len(TRACES) + 1


def test_it_returns_the_ids_of_the_rollouts_it_had_room_for(tmp_path):
    sink, run = WandbSink(max_rows=2), start(tmp_path)
    sink.on_run_start(run)
    assert sink.export_traces(TRACES, Step(step=1)) == [trace.rollout_id for trace in TRACES[:2]]
    sink.on_run_end(run)


def test_no_table_outgrows_the_limits_of_a_run_page():
    assert module.INCREMENTS <= 100
    assert module.ROWS <= wandb.Table.MAX_ROWS


def test_a_row_has_the_facts_as_columns_and_the_conversation_as_text_and_as_json(tmp_path):
    run = send(WandbSink(), start(tmp_path))
    first, failing, images, none = rows(run)
    assert list(first)[:7] == ["step", "split", "reward", "advantage", "prompt", "response", "image"]
    assert (first["reward"], first["reward/correct"], first["reward/format"]) == (1.0, 1.0, None)
    assert (first["columns/answer"], first["columns/meta"]) == ("6", '{"source": ["gsm8k", 3]}')
    assert first["extra/judge"] == 0.5
    assert first["prompt"] == "[system] Be brief.\n\n[user] What is 2*3? Weather?"
    assert '→ weather(city="Zürich")\n\n[tool] rain' in first["response"]
    assert json.loads(first["messages"])[3]["tool_call_id"] == "call_0_1"
    assert json.loads(failing["spans"])[0]["error"] == "backend down"
    assert (failing["tool_errors"], failing["finish"], failing["status"]) == (2, "tool_limit", "ok")
    assert (images["image"], images["images"], first["image"]) == ("Image", 2, None)
    assert (none["reward"], none["status"], none["error"]) == (None, "error", "environment crashed")
    assert (first["step"], first["group"], first["index"], first["rank"], first["policy_step"]) == (3, 0, 0, 0, 2)


def test_thumbnails_are_small_jpegs_and_siblings_share_one(tmp_path):
    run, before = start(tmp_path), set(artifacts())
    Pictures.effect_noise((2000, 1000), 50).save(tmp_path / "media/shape.png")
    twins = [default_trace(pictured()), default_trace(replace(pictured(), id="sibling"))]
    send(WandbSink(image_side=64), run, traces=twins)
    jpegs = [data for path, data in artifacts().items() if path not in before and data.startswith(b"\xff\xd8\xff")]
    assert len(jpegs) == 1
    (tmp_path / "one.jpg").write_bytes(jpegs[0])
    with Pictures.open(tmp_path / "one.jpg") as picture:
        assert picture.size == (64 + 32, 32)


def test_an_image_that_cannot_be_read_costs_no_row(tmp_path):
    run = start(tmp_path)
    (tmp_path / "media/shape.png").write_bytes(b"no image")
    (tmp_path / "media/square.webp").unlink()
    send(WandbSink(), run, traces=[default_trace(pictured()), default_trace(rejected())])
    assert [(row["image"], row["images"]) for row in rows(run.id)] == [(None, 2), (None, 1)]


# --- columns -------------------------------------------------------------------------------------------------------


def test_values_of_other_types_and_shapes_never_clash(tmp_path):
    odd = replace(tools(), columns={"answer": 7, "meta": "text"}, rewards={"correct": float("nan"), "format": 0.0})
    empty = replace(tools(), columns={}, extra={"judge": "none of it"}, reward=float("inf"))
    run = send(WandbSink(), start(tmp_path), traces=[default_trace(r) for r in (tools(), odd, empty)])
    _, second, third = rows(run)
    assert (second["columns/answer"], second["columns/meta"]) == ("7", "text")
    assert str(second["reward/correct"]) == "nan"
    assert second["reward/format"] == 0.0
    assert (third["columns/answer"], third["reward"]) == (None, float("inf"))


def test_the_first_batch_fixes_the_columns_and_later_values_go_to_more_with_one_warning(tmp_path, caplog):
    later = replace(tools(), columns={"answer": "6", "hint": "new"}, rewards={"correct": 1.0, "late": 0.25})
    text = replace(tools(), extra={"judge": "text where numbers were"})
    sink, run = WandbSink(), start(tmp_path)
    sink.on_run_start(run)
    with caplog.at_level(logging.WARNING):
        sink.export_traces([default_trace(tools())], Step(step=1))
        for step in (2, 3):
            sink.export_traces([default_trace(later), default_trace(text)], Step(step=step))
    sink.on_run_end(run)
    first, *others = tables(run.id).values()
    assert {tuple(row) for row in rows(run.id)} == {tuple(first[0])}
    assert json.loads(others[0][0]["more"]) == {"columns/hint": "new", "reward/late": 0.25}
    assert json.loads(others[0][1]["more"]) == {"extra/judge": "text where numbers were"}
    assert others[0][1]["extra/judge"] is None
    warnings = [record.message for record in caplog.records if "no column" in record.message]
    assert len(warnings) == 2
    assert "columns/hint, reward/late" in warnings[0]


def test_a_reward_function_without_values_yet_has_its_column_from_the_start(tmp_path):
    run = send(WandbSink(), start(tmp_path, reward_names=("correct", "format", "slow")), traces=TRACES[:1])
    assert rows(run)[0]["reward/slow"] is None


@given(st.lists(HOSTILE, min_size=20, max_size=20))
@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_any_rollout_is_a_row_next_to_another(tmp_path_factory, rollouts):
    traces = [default_trace(rollout) for rollout in (tools(), *rollouts)]
    first, *others = rows(send(WandbSink(), start(tmp_path_factory.mktemp("wandb")), traces=traces))
    assert first["id"] == "r-tools"
    assert [len(json.loads(row["messages"])) for row in others] == [len(trace.messages) for trace in traces[1:]]


# --- limits --------------------------------------------------------------------------------------------------------


def test_rows_of_a_step_are_capped_with_one_warning(tmp_path, caplog):
    run = send(WandbSink(max_rows=3), start(tmp_path), Step(step=1), Step(step=2))
    assert len(rows(run)) == 6
    assert [r.message for r in caplog.records if "max_rows" in r.message] == [
        "wandb shows 3 of 4 rollouts in a step (max_rows)"
    ]


def test_streams_are_not_capped_and_no_increment_is_larger_than_wandb_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 5)
    run = send(WandbSink(max_rows=3, scope="stream"), start(tmp_path), traces=TRACES * 3)
    assert [len(added) for added in tables(run).values()] == [5, 5, 2]


def test_long_text_keeps_its_head_and_tail(tmp_path):
    long = replace(tools(), prompt=({"role": "user", "content": "a" * 500 + "b" * 500},))
    run = send(WandbSink(max_chars=200), start(tmp_path), traces=[default_trace(long)])
    prompt = rows(run)[0]["prompt"]
    assert prompt.startswith("[user] aaa")
    assert "807 characters left out" in prompt
    assert prompt.endswith("bbb")
    assert shorten("x" * 200, 200) == "x" * 200


def test_memory_does_not_grow_with_the_steps(tmp_path):
    sink, run = WandbSink(), start(tmp_path)
    text = replace(tools(), prompt=({"role": "user", "content": "x" * 20_000},))
    sink.on_run_start(run)
    for step in range(1, 31):
        sink.export_traces([default_trace(text)] * 4, Step(step=step))
    held = [cell for growing in sink._tables.values() for row in growing._table.data for cell in row]
    sink.on_run_end(run)
    assert held == []
    assert len(rows(run.id)) == 120


# --- whose run -----------------------------------------------------------------------------------------------------


def test_the_trainers_run_gets_the_tables_with_its_own_x_axis_and_stays_open(tmp_path):
    theirs = wandb.init(project="p", id=f"t{uuid4().hex[:12]}")
    try:
        sink = WandbSink()
        sink.bind(SimpleNamespace(args=SimpleNamespace(report_to=["wandb"], run_name=None)))
        sink.on_run_start(run_in(tmp_path))
        for step in (1, 2):
            theirs.log({"profiling": 1.0})
            sink.export_traces(TRACES, Step(step=step))
            theirs.log({"loss": 0.5, "train/global_step": step})
        sink.on_run_end(run_in(tmp_path))
        assert wandb.run is theirs
        theirs.log({"after": 1})
    finally:
        theirs.finish()
    logged = history(theirs.id)
    shown = [row for row in logged if any(key.startswith("rollouts/from_step_000001") for key in row)]
    assert [row["train/global_step"] for row in shown] == [1, 2]
    assert [row["_step"] for row in logged] == list(range(7))
    assert len(rows(theirs.id)) == 8


def test_a_run_of_its_own_leaves_the_process_without_one(tmp_path):
    run = send(WandbSink(project="mine"), start(tmp_path))
    assert wandb.run is None
    assert len(history(run)) == 1


def test_a_file_that_is_still_written_is_read_up_to_its_last_complete_record(tmp_path):
    run = send(WandbSink(project="mine"), start(tmp_path))
    history(run)
    complete = (folder_of(run) / f"run-{run}.wandb").read_bytes()
    names = [record.WhichOneof("record_type") for record in records(folder_of(run) / f"run-{run}.wandb")]
    growing = tmp_path / "growing.wandb"
    for end in range(7, len(complete), 101):
        growing.write_bytes(complete[:end])
        read = [record.WhichOneof("record_type") for record in records(growing)]
        assert read == names[: len(read)]


def test_with_the_scope_rank_each_rank_has_its_own_run(tmp_path):
    run = replace(start(tmp_path, world_size=2), id="long" * 20)  # wandb takes ids of 64 characters
    for rank in (0, 1):
        step = Step(step=1, rank=rank, world_size=2, gathered=False)
        send(WandbSink(scope="rank"), replace(run, rank=rank), step)
    for rank in (0, 1):
        assert {row["ranks"] for row in rows(f"{run.id[:58]}-rank{rank}")} == {f"only rank {rank} of 2"}


def test_the_target_names_the_run_and_strange_run_ids_work(tmp_path):
    sink, run = WandbSink(project="math"), start(tmp_path)
    sink.on_run_start(run)
    sink.export_traces(TRACES, Step(step=1))
    assert sink.target == f"wandb:/math/{run.id}"
    sink.alert("title", "text")
    sink.on_run_end(run)
    sink.on_run_end(run)
    send(WandbSink(), replace(run, id=f"../{run.id}/b:c#%"))
    assert len(history(f"-{run.id}-b-c-")) == 1


def test_a_missing_api_key_is_an_error_instead_of_a_prompt_on_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(wandb, "login", lambda *, prompt=True: False)
    monkeypatch.setattr(wandb, "setup", lambda: SimpleNamespace(settings=SimpleNamespace(mode="online")))
    sink = WandbSink()
    with pytest.raises(SetupError, match="WANDB_MODE=offline"):
        sink.export_traces(TRACES, Step())


# --- set up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"project": ""}, {"name": 1}, {"max_rows": 0}, {"max_chars": 5}, {"image_side": True}, {"scope": "world"}],
)
def test_invalid_options_are_refused_at_once(options):
    with pytest.raises(SetupError, match=f"{next(iter(options))}="):
        WandbSink(**options)


@pytest.mark.parametrize(("name", "options"), [("wandb", {}), ("weave", {"weave": True})])
def test_the_error_for_a_missing_package_names_the_pip_command(monkeypatch, name, options):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install .*(wandb\]'|weave)"):
        WandbSink(**options)


class Client:
    """Replaces the client of Weave, which sends to a server, with the methods that we use."""

    def __init__(self):
        self.calls: list = []
        self.flushed = 0

    def create_call(self, op, inputs, parent=None, attributes=None, display_name=None, *, use_stack=True):
        self.calls.append(SimpleNamespace(op=op, inputs=inputs, parent=parent, attributes=attributes, end=None))
        assert not use_stack
        return self.calls[-1]

    def finish_call(self, call, output=None, exception=None):
        call.end = (output, exception)

    def flush(self):
        self.flushed += 1


def test_weave_gets_a_call_for_each_rollout_and_each_tool(tmp_path, monkeypatch):
    client = Client()
    places: list = []
    weave = SimpleNamespace(init=lambda place: places.append(place) or client)
    monkeypatch.setitem(sys.modules, "weave", weave)
    send(WandbSink(project="math", weave=True), start(tmp_path))
    assert set(places) == {"math"}  # wandb starts weave by itself, too, when it is loaded
    assert [call.op for call in client.calls] == [
        *("rollout", "multiply", "weather"),
        *("rollout", "broken", "nosuch", "multiply"),
        *("rollout", "crop"),
        "rollout",
    ]
    assert client.calls[1].parent is client.calls[0]
    assert client.calls[0].attributes["reward"] == 1.0
    assert client.calls[2].end == ("rain", None)
    assert str(client.calls[4].end[1]) == "backend down"
    assert str(client.calls[-1].end[1]) == "environment crashed"
    assert client.flushed == 1
    json.dumps([(call.inputs, call.attributes, call.end[0]) for call in client.calls])


def test_when_weave_fails_the_table_gets_no_row_twice(tmp_path, monkeypatch, caplog):
    client = Client()
    client.finish_call = lambda *_: next(iter(()))
    monkeypatch.setitem(sys.modules, "weave", SimpleNamespace(init=lambda _: client))
    sink, run = WandbSink(project="math", weave=True), start(tmp_path)
    sink.on_run_start(run)
    assert len(sink.export_traces(TRACES, Step(step=1))) == len(TRACES)
    sink.on_run_end(run)
    assert len(rows(run.id)) == len(TRACES)
    assert "Weave does not show all of 4 rollouts" in caplog.text


def test_a_hostile_trace_of_another_plugin_is_a_row_too(tmp_path):
    odd = replace(TRACES[0], messages=({"role": Hostile(), "tool_calls": [1]},), metadata={"x": Hostile(), "y": 2**70})
    run = send(WandbSink(), start(tmp_path), traces=[odd, TRACES[0]])
    assert len(rows(run)) == 2
    assert os.environ["WANDB_MODE"] == "offline"
