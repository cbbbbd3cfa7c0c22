"""Google Cloud Storage and Azure through their real clients: `.ci/clouds` installs them and runs this.

Google's server is gcp-storage-emulator; Azure's is a stand-in.
"""

import logging
import os
import socket
from pathlib import Path

import fsspec
import pytest
from azure_stand_in import KEY, azure
from mirrored import answers, batch, contents

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.remote import mirror as mirroring
from rollout_plugins.remote.folders import files_of, folder
from rollout_plugins.remote.url_places import place


@pytest.fixture
def google(monkeypatch):
    from gcp_storage_emulator.server import create_server

    with socket.socket() as kept:  # bound to the port, so that nobody else is given it, until the server is gone
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        server = create_server("127.0.0.1", port, in_memory=True, default_bucket="box")
        server.start()
        yield server
        server.stop()


@pytest.fixture(params=["gs", "az"])
def cloud(request, monkeypatch, tmp_path):
    monkeypatch.setattr(mirroring, "POLL_SECONDS", 0.05)
    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))
    fsspec.get_filesystem_class(request.param).clear_instance_cache()
    if request.param == "gs":
        request.getfixturevalue("google")
        yield "gs"
    else:
        with azure(monkeypatch):
            yield "az"


def test_a_run_is_mirrored_read_annotated_fetched_and_sent_again(cloud, tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO)
    options = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    with RolloutRecorder(
        dir=tmp_path / "here", run_id="mine", mirror=f"{cloud}://box/runs", config=options
    ) as recorder:
        for step in (1, 2, 3):
            recorder.record(step, batch(step))
            assert recorder.flush()
    run, there = Path(recorder.run.dir), f"{cloud}://box/runs/mine"
    assert len(folder(place(there)).sizes()) == 4
    found = open_run(f"{cloud}://box/runs")
    assert found.place == there
    assert found.annotate("judge", [{"id": found[0].id, "score": 1}]) == 1
    assert found.count(where="judge.score = 1") == 1
    assert main(["pull", there, str(run.parent)]) == 0
    assert sorted(answers(run)) == sorted(f"answer {step}.{n}" for step in (1, 2, 3) for n in range(4))
    assert main(["push", str(run), f"{cloud}://box/other"]) == 0
    assert folder(place(f"{cloud}://box/other/mine")).sizes() == {file.name: file.size for file in files_of(run)}
    kept = b"".join(contents(run).values()) + caplog.text.encode() + "".join(capsys.readouterr()).encode()
    assert KEY.encode() not in kept


def test_a_bucket_that_is_not_there_is_said(cloud, tmp_path, capsys):
    with RolloutRecorder(dir=tmp_path, run_id="mine") as recorder:
        recorder.record(1, batch(1))
    assert main(["push", str(tmp_path), f"{cloud}://nobody/runs"]) == 1
    assert "bucket or repository exists; create it, or correct the URL" in capsys.readouterr().err


def test_a_server_that_is_away_is_said(monkeypatch, tmp_path, capsys):
    with azure(monkeypatch):
        fsspec.get_filesystem_class("az").clear_instance_cache()
    assert os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    assert main(["stats", "az://box/runs"]) == 1
    err = capsys.readouterr().err
    assert "it cannot be reached; check the network" in err
    assert KEY not in err
