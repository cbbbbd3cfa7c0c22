import base64
import io
import json
import shutil
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from PIL import Image as Pictures
from rollout_hookspecs import Run, Step
from sink_rollouts import HOSTILE, SHAPE, batch, pictured, run_in, tools

from examples import thorough
from rollout_plugins.content.trace import default_trace
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks.scout import ScoutSink
from rollout_plugins.sinks.scout.transcript_files import MAX_SMALL_FILES

TRACES = [default_trace(r) for r in batch()]

#: Inspect Scout 0.6 by its `transcripts_db_schema("pyarrow")`. Its viewer fails without `events`, even if it is empty.
SCHEMA = {
    **dict.fromkeys(
        (
            "transcript_id", "source_type", "source_id", "source_uri", "date", "task_set", "task_id", "agent",
            "agent_args", "model", "model_options", "score", "score_explanation", "error", "limit", "messages",
            "events", "timelines", "events_data",
        ),
        "large_string",
    ),
    **dict.fromkeys(("task_repeat", "message_count", "total_tokens"), "int64"),
    **dict.fromkeys(("success", "trust_content"), "bool"),
    "total_time": "double",
}  # fmt: skip
ROLES = {"system", "user", "assistant", "tool"}


def send(sink, run, steps=1, traces=TRACES):
    sink.on_run_start(run)
    for step in range(steps):
        sink.export_traces(traces, Step(step=step))


def rows_in(folder):
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def check_messages(text):
    """The parts of inspect's ChatMessage that its reader insists on."""
    messages = json.loads(text)
    for message in messages:
        assert message["role"] in ROLES
        content = message["content"]
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            field = {"text": "text", "image": "image", "reasoning": "reasoning"}[part["type"]]
            assert isinstance(part[field], str)
        for made in message.get("tool_calls", ()):
            assert message["role"] == "assistant"
            assert isinstance(made["id"], str)
            assert isinstance(made["function"], str)
            assert isinstance(made["arguments"], dict)
            assert made["type"] == "function"
        if "error" in message:
            assert message["role"] == "tool"
            assert set(message["error"]) == {"type", "message"}
        for name in ("tool_call_id", "function"):
            assert isinstance(message.get(name), (str, type(None)))
    return messages


def test_columns_have_the_types_scout_reads_and_facts_are_columns_of_their_own(tmp_path):
    send(ScoutSink(), run_in(tmp_path))
    (path,) = (tmp_path / "scout").iterdir()
    schema = {field.name: str(field.type) for field in pq.read_schema(path)}
    assert {name: schema[name] for name in SCHEMA} == SCHEMA
    assert {schema[name] for name in ("step", "policy_step", "generation", "group", "rank", "staleness")} == {"int64"}
    assert {schema["reward"], schema["advantage"]} == {"double"}


def test_a_rollout_reads_back_as_a_transcript(tmp_path):
    send(ScoutSink(), run_in(tmp_path))
    first, failing, images, rejected = rows_in(tmp_path / "scout")
    assert first["transcript_id"] == "r-tools"
    assert json.loads(first["score"]) == {"reward": 1.0, "correct": 1.0, "format": None}
    assert (first["task_set"], first["task_id"], first["task_repeat"]) == ("train", "2.0", 0)
    assert (first["agent"], first["model"], first["total_tokens"]) == ("GRPOTrainer", "tiny", 52)
    assert first["source_uri"] == tmp_path.resolve().as_uri()
    assert (failing["limit"], failing["success"], rejected["error"]) == ("tool_limit", None, "environment crashed")
    assert {row["trust_content"] for row in (first, failing, images, rejected)} == {False}
    assert (rejected["reward"], rejected["message_count"]) == (None, 1)


def test_the_viewer_trusts_what_a_model_wrote_only_when_told_to(tmp_path):
    with pytest.raises(SetupError, match="trust_content='no' is not True or False"):
        ScoutSink(trust_content="no")
    send(ScoutSink(tmp_path / "trusted", trust_content=True), run_in(tmp_path))
    assert {row["trust_content"] for row in rows_in(tmp_path / "trusted")} == {True}


def test_tool_calls_are_flat_and_results_carry_their_errors(tmp_path):
    send(ScoutSink(), run_in(tmp_path))
    first, failing, *_ = (check_messages(row["messages"]) for row in rows_in(tmp_path / "scout"))
    asks, weather, multiply, _ = first[2:]
    assert asks["content"][0] == {"type": "reasoning", "reasoning": "Two tools."}
    assert asks["tool_calls"][1] == {
        "id": "call_0_1",
        "type": "function",
        "function": "weather",
        "arguments": {"city": "Zürich"},
    }
    assert (weather["tool_call_id"], multiply["tool_call_id"]) == ("call_0_1", "call_0_0")
    malformed = failing[2]["tool_calls"][1]
    assert malformed["arguments"] == {"arguments": "{not json"}
    assert malformed["parse_error"]
    assert failing[3]["error"] == {"type": "unknown", "message": "backend down"}


def test_images_are_inside_the_transcript_and_small(tmp_path):
    run = run_in(tmp_path)
    Pictures.effect_noise((900, 300), 50).save(tmp_path / "media" / "shape.png")
    send(ScoutSink(image_side=128), run)
    _, _, shown, lost = (check_messages(row["messages"]) for row in rows_in(tmp_path / "scout"))
    kind, data = shown[0]["content"][0]["image"].split(",")
    picture = Pictures.open(io.BytesIO(base64.b64decode(data)))
    assert (kind, picture.format, picture.size) == ("data:image/jpeg;base64", "JPEG", (128, 43))
    assert lost[0]["content"] == "[IMAGE: remote, not fetched, https://x.test/a.png]\nAnd?"


def test_an_image_outside_the_run_or_unreadable_is_words(tmp_path):
    run = run_in(tmp_path / "run")
    (tmp_path / "secret.png").write_bytes((tmp_path / "run/media/shape.png").read_bytes())
    (tmp_path / "run/media/square.webp").write_bytes(b"no image")
    away = replace(SHAPE, hash="away", path="../secret.png")
    prompt = ({"role": "user", "content": [{"type": "image", "image": away}]},)
    send(ScoutSink(), run, traces=[default_trace(replace(pictured(), prompt=prompt))])
    (row,) = rows_in(tmp_path / "run/scout")
    assert "data:image" not in row["messages"]
    assert row["messages"].count("[IMAGE: file is missing]") == 2


def test_roles_scout_does_not_know_are_kept_beside(tmp_path):
    odd = replace(tools(), prompt=({"role": "environment", "content": "hi"}, {"role": "developer", "content": "yo"}))
    send(ScoutSink(), run_in(tmp_path), traces=[default_trace(odd)])
    first, second, *_ = check_messages(rows_in(tmp_path / "scout")[0]["messages"])
    assert (first["role"], first["metadata"]) == ("user", {"role": "environment"})
    assert (second["role"], second["metadata"]) == ("system", {"role": "developer"})


def test_every_batch_is_on_disk_at_once_and_files_stay_few(tmp_path):
    sink, run = ScoutSink(), run_in(tmp_path)
    send(sink, run, steps=3)
    assert len(rows_in(tmp_path / "scout")) == 12
    for step in range(3, 2 * MAX_SMALL_FILES + 5):
        sink.export_traces(TRACES, Step(step=step))
    assert len(list((tmp_path / "scout").iterdir())) == 2 + 5
    sink.on_run_end(run)
    sink.on_run_end(run)
    assert len(list((tmp_path / "scout").iterdir())) == 3
    assert len(rows_in(tmp_path / "scout")) == 4 * (2 * MAX_SMALL_FILES + 5)


@pytest.mark.parametrize("steps", [2, MAX_SMALL_FILES + 2])
def test_transcripts_that_are_removed_in_mid_run_are_counted_and_merged_ones_are_not(tmp_path, steps):
    run, sink = run_in(tmp_path), ScoutSink()
    sink.on_run_start(run)
    for step in range(steps):
        sink.export_traces(TRACES, Step(step=step))
    assert sink.gone() == 0
    shutil.rmtree(tmp_path / "scout")
    sink.export_traces(TRACES, Step())
    assert (sink.gone(), sink.gone()) == (steps * len(TRACES), 0)
    next((tmp_path / "scout").glob("*.parquet")).unlink()
    sink.on_run_end(run)
    assert sink.gone() == len(TRACES)


def test_a_later_start_adds_and_clears_what_a_killed_merge_left(tmp_path):
    run = run_in(tmp_path)
    sink = ScoutSink()
    send(sink, run, steps=2)
    left = {path.name: path.read_bytes() for path in (tmp_path / "scout").iterdir()}
    sink.on_run_end(run)
    for name, data in left.items():
        (tmp_path / "scout" / name).write_bytes(data)
    (tmp_path / "scout" / "0000-00000002.tmp").write_bytes(b"half")
    again = ScoutSink()
    send(again, run)
    assert sorted(p.name[13:] for p in (tmp_path / "scout").glob("*.parquet")) == [
        "-00000000-00000001.parquet",
        "-00000000.parquet",
    ]
    assert len(rows_in(tmp_path / "scout")) == 12


def test_two_runs_at_once_share_a_folder(tmp_path):
    sinks = [ScoutSink(tmp_path / "both") for _ in range(2)]
    for number, sink in enumerate(sinks):
        sink.on_run_start(run_in(tmp_path / str(number), id=f"run-{number}"))
    for step in range(3):
        for sink in sinks:
            sink.export_traces(TRACES, Step(step=step))
    for sink in sinks:
        sink.on_run_end(Run(id="any"))
    assert Counter(row["source_id"] for row in rows_in(tmp_path / "both")) == {"run-0": 12, "run-1": 12}


def test_rows_that_are_there_are_not_counted_as_failed_when_merging_fails(tmp_path, caplog):
    sink, run = ScoutSink(), run_in(tmp_path)
    send(sink, run, steps=MAX_SMALL_FILES - 1)
    next((tmp_path / "scout").iterdir()).write_bytes(b"damaged")
    sink.export_traces(TRACES, Step(step=99))
    assert len(list((tmp_path / "scout").iterdir())) == MAX_SMALL_FILES
    assert "Merging the files" in caplog.text


def test_ranks_share_a_folder(tmp_path):
    for rank in (0, 1):
        sink, run = ScoutSink(scope="rank"), run_in(tmp_path, rank=rank, world_size=2)
        send(sink, run, steps=2)
        sink.on_run_end(run)
    assert len(rows_in(tmp_path / "scout")) == 16


@given(HOSTILE)
@thorough
def test_any_rollout_is_a_row_next_to_another(tmp_path_factory, rollout):
    folder = tmp_path_factory.mktemp("scout")
    send(ScoutSink(), run_in(folder), traces=[default_trace(rollout), default_trace(tools())])
    odd, fine = rows_in(folder / "scout")
    check_messages(odd["messages"])
    assert fine["transcript_id"] == "r-tools"


@pytest.mark.parametrize("options", [{"path": 3}, {"image_side": 0}, {"scope": None}])
def test_options_that_make_no_sense_are_refused_at_once(options):
    with pytest.raises(SetupError, match=f"{next(iter(options))}="):
        ScoutSink(**options)
