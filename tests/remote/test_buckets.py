"""Buckets of the Hub: the real client and its real `hf_xet`, against a stand-in for the Hub and for Xet behind it."""

import os

import pytest
from hub import hub as hub_server
from mirrored import answers, batch, contents, recorded

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_mirror")]
URL = "hf://buckets/me/box/runs"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_XET_CACHE", str(tmp_path / "xet"))
    with hub_server(monkeypatch) as server:
        yield server


def stored(hub, bucket="me/box"):
    return {name: hub.xet.content(digest) for name, digest in hub.buckets[bucket]["files"].items()}


def test_a_run_is_mirrored_read_annotated_fetched_and_sent_again(hub, tmp_path, caplog, capfd):
    options = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    with RolloutRecorder(dir=tmp_path / "here", run_id="mine", mirror=URL, config=options) as recorder:
        for step in (1, 2, 3):
            recorder.record(step, batch(step))
            assert recorder.flush()
    run = tmp_path / "here" / "mine"
    assert hub.buckets["me/box"]["private"] is True
    assert {f"runs/mine/{name}": data for name, data in contents(run).items()}.items() <= stored(hub).items()
    found = open_run(URL)
    assert found.place == f"{URL}/mine"
    assert found.annotate("judge", [{"id": found[0].id, "score": 1}]) == 1
    assert found.count(where="judge.score = 1") == 1
    assert main(["pull", f"{URL}/mine", str(run.parent)]) == 0
    assert sorted(answers(run)) == sorted(f"answer {step}.{n}" for step in (1, 2, 3) for n in range(4))
    assert main(["push", str(run), "hf://buckets/me/other/runs"]) == 0
    assert stored(hub, "me/other") == {f"runs/mine/{name}": data for name, data in contents(run).items()}
    said = caplog.text + "".join(capfd.readouterr())
    assert os.environ["HF_TOKEN"] not in said
    assert "Processing Files" not in said  # the client's own progress


def test_what_is_there_is_not_sent_again(hub, tmp_path):
    run = recorded(tmp_path, steps=(1, 2), run_id="mine")
    assert main(["push", str(run), URL]) == 0
    before = len(hub.buckets["me/box"]["batches"])
    assert main(["push", str(run), URL]) == 0
    assert hub.buckets["me/box"]["batches"][before:] == [["runs/mine/run.json"]]


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [("xet", 403, "check the credentials: HF_TOKEN"), ("batch", 403, "HF_TOKEN, or `hf auth login`")],
)
def test_a_refusal_says_what_to_do_and_the_files_follow_later(hub, tmp_path, caplog, where, status, said):
    refuses = hub.xet.refuses if where == "xet" else hub.refuses
    refuses += [status] * 3
    with RolloutRecorder(dir=tmp_path, run_id="mine", mirror=URL) as recorder:
        recorder.record(1, batch(1))
        recorder.flush()
    assert said in caplog.text
    assert answers(URL) == answers(tmp_path / "mine")


@pytest.mark.parametrize("command", ["pull", "stats"])
@pytest.mark.parametrize("kind", ["buckets", "datasets"])
def test_a_place_that_is_not_there_is_said(hub, command, kind, capsys):
    assert main([command, f"hf://{kind}/me/none/runs"]) == 1
    err = capsys.readouterr().err
    assert "no such bucket or repository exists; create it, or correct the URL" in err
    assert err.count("\n") == 1


def test_a_folder_of_a_bucket_that_has_no_run_is_said(hub, capsys):
    hub.buckets["me/box"] = {"private": True, "files": {}, "batches": []}
    assert main(["pull", URL]) == 1
    assert f"{URL} is not a run: no run.json and no data" in capsys.readouterr().err


def test_a_client_that_knows_no_buckets_is_said(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.delattr("huggingface_hub.HfApi.create_bucket")
    run = recorded(tmp_path, steps=(1,))
    assert main(["push", str(run), URL]) == 1
    assert "knows no buckets: pip install --upgrade huggingface_hub" in capsys.readouterr().err
