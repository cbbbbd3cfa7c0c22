"""The mirror on S3: moto's server over HTTP, through PyArrow's real client, with what goes wrong on a network."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mirrored import batch, contents, recorded
from processes import environment
from s3_server import faulty, s3_server
from s3_stand_in import s3_stand_in

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.remote import mirror as mirroring
from rollout_plugins.remote.folders import Folder, files_of, folder
from rollout_plugins.remote.url_places import place

pytestmark = pytest.mark.slow
WORKER = Path(__file__).parents[1] / "support" / "mirror_worker.py"


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setattr(mirroring, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(mirroring, "SHARE", 1.0)
    pytest.importorskip("moto")
    with s3_server(monkeypatch) as server:
        server.make_bucket("bucket")
        yield server


def sizes(run):
    return {file.name: file.size for file in files_of(run)}


def wait_for(what):
    until = time.monotonic() + 240
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_run_is_in_the_bucket_byte_by_byte_and_s3fs_reads_it_too(s3, tmp_path):
    run = recorded(tmp_path / "here", steps=range(1, 30), mirror="s3://bucket/runs")
    assert s3.names(f"bucket/runs/{run.name}") == sizes(run)
    there = place(f"s3://bucket/runs/{run.name}")
    for name in sizes(run):
        assert there.fsspec.cat_file(there.inside(name).path) == (run / name).read_bytes()
        folder(there).fetch(name, tmp_path / "back" / name)
    assert contents(tmp_path / "back") == contents(run)
    assert len(open_run(tmp_path / "back")) == 29 * 4


def test_a_server_that_is_down_for_a_while_gets_everything_afterwards(s3, tmp_path, caplog):
    s3.stop()
    with RolloutRecorder(
        dir=tmp_path, mirror="s3://bucket/runs", config={"mirror": {"seal_seconds": 0.01}}
    ) as recorder:
        for step in range(1, 4):
            recorder.record(step, batch(step))
            assert recorder.flush()
        wait_for(lambda: "it cannot be reached; check the network and AWS_ENDPOINT_URL" in caplog.text)
        s3.start()
        s3.make_bucket("bucket")
        wait_for(lambda: "takes files again" in caplog.text)
        run = Path(recorder.run.dir)
    assert s3.names(f"bucket/runs/{run.name}") == sizes(run)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (503, "SlowDown", "it is overloaded, or limits how often it is asked"),
        (403, "InvalidAccessKeyId", "check the credentials: AWS_PROFILE"),
        (404, "NoSuchBucket", "no such bucket or repository exists; create it"),
        (507, "InsufficientStorage", "it is full, or a quota is used up; make room there"),
        (403, "QuotaExceeded", "it is full, or a quota is used up; make room there"),
        (400, "ExpiredToken", "renew them: AWS_PROFILE"),
        (403, "RequestTimeTooSkewed", "this machine's clock differs from the server's; set it"),
    ],
)
def test_what_the_service_refuses_is_told_with_what_to_do_and_follows_later(
    s3, tmp_path, monkeypatch, caplog, status, code, said
):
    with faulty(s3, monkeypatch) as front:
        front.fault = status, code
        with RolloutRecorder(dir=tmp_path, mirror="s3://bucket/runs") as recorder:
            recorder.record(1, batch(1))
            assert recorder.flush()
            wait_for(lambda: said in caplog.text)
            front.fault = None
            run = Path(recorder.run.dir)
    assert s3.names(f"bucket/runs/{run.name}") == sizes(run)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in caplog.text
    assert "not complete" not in caplog.text


def test_credentials_that_expire_in_mid_run_and_are_renewed_in_their_file_are_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(mirroring, "POLL_SECONDS", 0.05)
    with s3_stand_in(monkeypatch, {}) as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        keys = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\naws_session_token = "
        (tmp_path / "credentials").write_text(f"{keys}first")
        options = {"mirror": {"seal_seconds": 1e-9}}
        with RolloutRecorder(dir=tmp_path, run_id="mine", mirror="s3://bucket/runs", config=options) as recorder:
            recorder.record(1, batch(1))
            assert recorder.flush()
            wait_for(lambda: any("data/" in name for name in list(server.objects)))
            server.expired = "first"
            recorder.record(2, batch(2))
            assert recorder.flush()
            wait_for(lambda: "the credentials have expired; renew them: AWS_PROFILE" in caplog.text)
            (tmp_path / "credentials").write_text(f"{keys}second")
            wait_for(lambda: "takes files again" in caplog.text)
        assert {name: len(data) for name, data in server.objects.items()} == {
            f"bucket/runs/mine/{name}": size for name, size in sizes(tmp_path / "mine").items()
        }


def test_credentials_are_in_no_file_log_or_error(s3, tmp_path, monkeypatch, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    run = recorded(tmp_path / "here", mirror="s3://bucket/runs", run_id="mine")
    with faulty(s3, monkeypatch) as front:
        front.fault = 403, "SignatureDoesNotMatch"
        recorded(tmp_path / "there", mirror="s3://bucket/runs", end_seconds=2)
        assert main(["push", str(run), "s3://bucket/other"]) == 1
        assert main(["pull", "s3://bucket/runs/mine", str(tmp_path)]) == 1
    assert main(["pull", "s3://bucket/runs/mine", str(tmp_path / "back")]) == 0
    told = caplog.text + "".join(capsys.readouterr())
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "check the credentials: AWS_PROFILE" in told
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in told.encode() + kept


def test_a_push_that_is_killed_in_mid_upload_goes_on_where_it_was(s3, tmp_path, monkeypatch, capsys):
    with RolloutRecorder(dir=tmp_path, run_id="mine") as recorder:
        for step in range(1, 4):
            recorder.record(step, batch(step))
    with RolloutRecorder(dir=tmp_path, run_id="mine") as recorder:
        recorder.record(9, [{"prompt": "q", "completion": os.urandom(30_000_000).hex()}])
    words = [sys.executable, "-m", "rollout_plugins.cli.main", "push", str(tmp_path), "s3://bucket/runs"]
    with faulty(s3, monkeypatch) as front:
        front.fault = "hangs in mid-upload"
        pushing = subprocess.Popen(words)
        wait_for(lambda: front.hung)
        pushing.send_signal(signal.SIGKILL)
        pushing.wait()
    assert [name for name in s3.names("bucket/runs/mine") if "data/" in name] == [
        "data/train/001-00000-000000.parquet"
    ]
    sent, send = [], Folder._send
    monkeypatch.setattr(Folder, "_send", lambda self, file: (sent.append(file.name), send(self, file)))
    assert main(words[3:]) == 0
    assert sent == ["data/train/002-00000-000000.parquet", "run.json"]
    assert s3.names("bucket/runs/mine") == sizes(tmp_path / "mine")


ENDS = """
import sys, threading
from clock import Clock
from rollout_plugins import RolloutRecorder
from rollout_plugins.engine import isolation
isolation.time = Clock()
with RolloutRecorder(dir=sys.argv[1], mirror="s3://bucket/runs", end_seconds=2) as recorder:
    recorder.record(1, [{"prompt": "q", "completion": "a"}])
    assert recorder.flush(600)
for thread in threading.enumerate():
    if thread.name in ("rollouts-worker", "rollouts-hooks"):  # on a slow machine, still about to say what is missing
        thread.join()
"""


def test_a_server_that_never_answers_holds_up_neither_the_run_nor_the_process(s3, tmp_path, monkeypatch):
    with faulty(s3, monkeypatch) as front:
        front.fault = "hangs"
        ended = subprocess.run(  # the server hangs for much longer
            [sys.executable, "-c", ENDS, str(tmp_path)],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
            env=environment(),
        )
    assert "the mirror is not complete: 2 files" in ended.stderr
    assert "does not answer" in ended.stderr
    assert len(open_run(tmp_path)) == 1


def test_a_process_killed_in_mid_upload_leaves_nothing_half_and_the_next_goes_on(s3, tmp_path, monkeypatch):
    with faulty(s3, monkeypatch) as front:
        front.fault = "hangs in mid-upload"  # of a part of many megabytes
        worker = subprocess.Popen([sys.executable, str(WORKER), str(tmp_path)])
        wait_for(lambda: front.hung)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    run = tmp_path / "mine"
    there = s3.names("bucket/runs/mine")
    assert (
        1 == len([name for name in there if name.endswith(".parquet")]) < len(list(run.glob("data/train/*.parquet")))
    )
    assert all(sizes(run)[name] == size for name, size in there.items() if name.endswith(".parquet"))
    recorded(tmp_path, steps=(9,), run_id="mine", mirror="s3://bucket/runs")
    assert s3.names("bucket/runs/mine") == sizes(run)


def test_two_nodes_whose_clocks_are_an_hour_apart_fill_one_folder(s3, tmp_path, monkeypatch):
    options = {"mirror": "s3://bucket/runs", "run_id": "mine", "world_size": 2}
    first = recorded(tmp_path / "a", rank=0, **options)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    second = recorded(tmp_path / "b", rank=1, **options)
    for path in second.rglob("*"):
        os.utime(path, (now() - 3600, now() - 3600))
    recorded(tmp_path / "b", rank=1, steps=(3,), **options)
    assert s3.names("bucket/runs/mine") == sizes(first) | sizes(second)
