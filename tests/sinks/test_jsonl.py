import io
import json
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from rollout_hookspecs import Rollout, Step
from sink_rollouts import HOSTILE, batch, pictured, rejected, run_in, tools

from examples import thorough
from rollout_plugins.content.trace import default_trace
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks.jsonl import JsonlSink

TRACES = [default_trace(r) for r in batch()]


def lines_in(folder):
    files = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def send(sink, run, steps=1, traces=TRACES):
    sink.on_run_start(run)
    for step in range(steps):
        sink.export_traces(traces, Step(step=step))
    sink.on_run_end(run)


def test_one_line_per_rollout_with_the_complete_conversation(tmp_path):
    send(JsonlSink(), run_in(tmp_path))
    lines = lines_in(tmp_path / "jsonl")
    assert [line["id"] for line in lines] == ["r-tools", "r-failing", "r-pictured", "r-rejected"]
    first = lines[0]
    assert [m["role"] for m in first["prompt"]] == ["system", "user"]
    assert first["completion"][0]["reasoning_content"] == "Two tools."
    assert first["completion"][1]["tool_call_id"] == "call_0_1"
    assert first["spans"][0]["duration_ms"] == 3.0
    assert (first["step"], first["policy_step"], first["advantage"], first["finish"]) == (3, 2, 0.7, "stop")


def test_lines_have_the_keys_that_the_readers_of_verl_and_verifiers_expect(tmp_path):
    send(JsonlSink(), run_in(tmp_path))
    first, failing, *_ = lines_in(tmp_path / "jsonl")
    assert first["input"] == "system: Be brief.\n\nuser: What is 2*3? Weather?"
    assert first["output"].startswith("assistant: Two tools.\nmultiply(a=2, b=3)\n")
    assert (first["gts"], first["score"], first["request_id"]) == ("6", 1.0, "r-tools")
    assert (first["example_id"], first["answer"], first["reward"]) == ("2.0", "6", 1.0)
    assert first["metrics"] == first["rewards"] == {"correct": 1.0, "format": None}
    assert first["info"] == {"answer": "6", "meta": '{"source": ["gsm8k", 3]}'}
    assert (first["is_completed"], failing["is_completed"], failing["stop_condition"]) == (True, False, "tool_limit")
    assert all(path.stem.isdecimal() for path in (tmp_path / "jsonl").iterdir())


def test_images_are_named_by_hash_and_file_and_errors_stand_in_their_line(tmp_path):
    send(JsonlSink(), run_in(tmp_path), traces=[default_trace(pictured()), default_trace(rejected())])
    shown, lost = lines_in(tmp_path / "jsonl")
    assert shown["prompt"][0]["content"][0]["image"] == {"hash": "shape", "path": "media/shape.png"}
    assert lost["prompt"][0]["content"][0]["image"]["note"] == "remote, not fetched"
    assert (lost["completion"], lost["reward"], lost["status"], lost["error"]) == (
        [],
        None,
        "error",
        "environment crashed",
    )


def test_files_rotate_by_size_and_no_line_is_cut(tmp_path):
    run = run_in(tmp_path)
    send(JsonlSink(max_bytes=20_000), run, steps=12)
    files = list((tmp_path / "jsonl").iterdir())
    assert len(files) > 3
    assert len(lines_in(tmp_path / "jsonl")) == 48
    assert max(path.stat().st_size for path in files) < 40_000


def test_a_second_start_continues_in_the_same_folder_after_an_incomplete_line(tmp_path):
    run = run_in(tmp_path)
    send(JsonlSink(), run)
    (file,) = (tmp_path / "jsonl").iterdir()
    file.write_bytes(file.read_bytes() + b'{"id": "cut in the mid')
    send(JsonlSink(), run)
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["id"] for line in whole] == 2 * [trace.rollout_id for trace in TRACES]


def test_a_write_that_fails_half_way_leaves_no_part_of_it(tmp_path):
    code = (
        "import resource, signal; from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "folder = Path(sys.argv[1]); run = run_in(folder); sink = JsonlSink(); sink.on_run_start(run)\n"
        "sink.export_traces(TRACES, Step())\n"
        "most = (folder / 'jsonl/0.jsonl').stat().st_size + 1_000\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))\n"
        "with pytest.raises(OSError): sink.export_traces(TRACES, Step())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "sink.export_traces(TRACES[:1], Step()); sink.on_run_end(run)"
    )
    run_python(code, arguments=[tmp_path])
    assert [line["id"] for line in lines_in(tmp_path / "jsonl")] == [
        trace.rollout_id for trace in [*TRACES, TRACES[0]]
    ]


def test_lines_in_a_folder_that_is_moved_during_the_run_are_counted(tmp_path):
    run, sink = run_in(tmp_path), JsonlSink()
    sink.on_run_start(run)
    sink.export_traces(TRACES[:1], Step())
    (tmp_path / "jsonl").rename(tmp_path / "moved")
    sink.export_traces(TRACES[1:], Step())
    assert [line["id"] for line in lines_in(tmp_path / "jsonl")] == [trace.rollout_id for trace in TRACES[1:]]
    assert (sink.gone(), sink.gone()) == (1, 0)


def test_two_runs_in_one_folder_keep_their_lines_apart(tmp_path):
    code = (
        "from pathlib import Path\n"
        "run = run_in(Path(sys.argv[1]) / sys.argv[2]); sink = JsonlSink(Path(sys.argv[1]), max_bytes=50_000)\n"
        "sink.on_run_start(run); [sink.export_traces(TRACES, Step()) for _ in range(50)]"
    )
    runs = [threading.Thread(target=run_python, args=(code,), kwargs={"arguments": [tmp_path, n]}) for n in "ab"]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(lines_in(tmp_path)) == 2 * 50 * len(TRACES)


def test_a_full_file_from_before_is_not_written_to(tmp_path):
    run = run_in(tmp_path)
    send(JsonlSink(max_bytes=10), run)
    send(JsonlSink(max_bytes=10), run)
    assert sorted(path.name for path in (tmp_path / "jsonl").iterdir()) == ["0.jsonl", "1.jsonl"]


def test_standard_output_is_for_pipes(tmp_path):
    code = "sink = JsonlSink('-'); sink.export_traces(TRACES, Step()); sink.on_run_end(None)"
    out = run_python(code, stdout=subprocess.PIPE, text=True).stdout
    assert [json.loads(line)["id"] for line in out.splitlines()] == [trace.rollout_id for trace in TRACES]


def run_python(code, arguments=(), env=os.environ, **options):
    env = {**env, "PYTHONPATH": os.pathsep.join(sys.path)}
    imports = (
        "import json, os, sys, threading, pytest\n"
        "from rollout_hookspecs import Step\nfrom sink_rollouts import batch, run_in\n"
        "from rollout_plugins.content.trace import default_trace\nfrom rollout_plugins.sinks.jsonl import JsonlSink\n"
        "TRACES = [default_trace(r) for r in batch()]\n"
    )
    code = imports + code
    return subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=env, **options)


def test_standard_output_in_ascii_gets_every_rollout():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run_python("JsonlSink('-').export_traces(TRACES, Step())", capture_output=True, env=env)
    first, *_ = [json.loads(line) for line in done.stdout.decode("ascii").splitlines()]
    assert first["spans"][1]["input"] == {"city": "Zürich"}


def test_a_pipe_that_nobody_reads_keeps_room_for_what_training_prints():
    ours, theirs = os.pipe()
    code = (
        "import fcntl, termios; sink = JsonlSink('-')\n"
        "send_all = lambda: [sink.export_traces(TRACES, Step()) for _ in range(200)]\n"
        "threading.Thread(target=send_all, daemon=True).start()\n"
        "unread = lambda: int.from_bytes(fcntl.ioctl(1, termios.FIONREAD, bytes(4)), sys.byteorder)\n"
        "while unread() < 16_384: pass\n"
        "[print('x' * 90, flush=True) for _ in range(100)]"
    )
    run_python(code, stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours) as lines:
        assert lines.read().count("x" * 90 + "\n") == 100


def test_a_slow_reader_gets_every_line_complete():
    code = (
        "sink = JsonlSink('-'); send_all = lambda: [sink.export_traces(TRACES, Step()) for _ in range(100)]\n"
        "thread = threading.Thread(target=send_all); thread.start(); thread.join()"
    )
    lines = run_python(code, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == 100 * [trace.rollout_id for trace in TRACES]


def test_a_named_pipe_gets_every_line(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list = []
    reader = threading.Thread(target=lambda: read.extend(pipe.read_text().splitlines()))
    reader.start()
    send(JsonlSink(pipe), run_in(tmp_path), steps=2)
    reader.join(600)
    assert len(read) == 2 * len(TRACES)


def test_with_the_scope_rank_each_rank_has_its_own_files(tmp_path):
    for rank in (0, 1):
        send(JsonlSink(scope="rank"), run_in(tmp_path, rank=rank, world_size=2))
    assert sorted(p.name for p in (tmp_path / "jsonl").iterdir()) == ["rank-0", "rank-1"]
    assert len(lines_in(tmp_path / "jsonl" / "rank-1")) == len(TRACES)


def test_with_the_scope_rank_a_sink_writes_only_the_rollouts_of_its_rank(tmp_path):
    sink, run = JsonlSink(scope="rank"), run_in(tmp_path, world_size=2)
    both = [default_trace(tools()), default_trace(tools(id="other", rank=1))]
    send(sink, run, traces=both)
    assert [line["id"] for line in lines_in(tmp_path / "jsonl" / "rank-0")] == ["r-tools"]


@given(HOSTILE)
@thorough
def test_any_rollout_is_one_line_next_to_another(tmp_path_factory, rollout):
    folder = tmp_path_factory.mktemp("jsonl")
    send(JsonlSink(folder), run_in(folder), traces=[default_trace(rollout), default_trace(tools())])
    text = (folder / "0.jsonl").read_bytes().decode()
    first, second, rest = text.split("\n")
    assert json.loads(first)["status"] in {"ok", "error"}
    assert json.loads(second)["id"] == "r-tools"
    assert rest == ""


def test_ending_twice_and_ending_without_a_start_do_nothing(tmp_path):
    sink = JsonlSink(tmp_path)
    sink.on_run_end(run_in(tmp_path))
    sink.on_run_end(run_in(tmp_path))
    sink.export_traces([], Step())
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize("options", [{"path": 3}, {"max_bytes": 0}, {"max_bytes": "1"}, {"scope": "all"}])
def test_invalid_options_are_refused_at_once(options):
    with pytest.raises(SetupError, match=f"{next(iter(options))}="):
        JsonlSink(**options)


def test_standard_output_that_takes_ascii_alone_loses_nothing(tmp_path, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    odd = default_trace(Rollout(id="r", prompt=({"role": "user", "content": "café 😀 \u202e"},)))
    send(JsonlSink("-"), run_in(tmp_path), traces=[odd])
    assert json.loads(written.getvalue())["prompt"][0]["content"] == "café 😀 \u202e"
