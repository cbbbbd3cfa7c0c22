"""Runs in a bucket: through the real S3 client, from a server that speaks S3 over HTTP (moto's)."""

import os
import subprocess
import sys

import fsspec
import pytest
from s3_server import faulty, s3_server
from store_rig import record, rollouts
from values import same

from rollout_plugins import open_run
from rollout_plugins.errors import RunError

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))
    with s3_server(monkeypatch) as running:
        running.make_bucket("bucket")
        fsspec.filesystem("s3").clear_instance_cache()
        yield running


@pytest.fixture
def here(tmp_path, server):
    """A run on disk, which is also in the bucket."""
    run = record(tmp_path, rollouts(4), rollouts(4))
    fsspec.filesystem("s3").put(str(run.dir), "s3://bucket/runs/r1", recursive=True)
    return run


def test_a_run_in_a_bucket_is_the_run_on_disk(here):
    run = open_run("s3://bucket/runs")

    assert run.place == "s3://bucket/runs/r1"
    assert same(list(run), list(here))
    assert run.stats() == here.stats()
    assert run.annotate("judge", [{"id": run[0].id, "score": 0.5}]) == 1
    assert run.count(where="judge.score = 0.5") == 1


def test_a_folder_that_may_not_be_listed_is_an_error_and_not_an_empty_run(here, server, monkeypatch):
    with faulty(server, monkeypatch) as front:
        front.fault = (403, "AccessDenied", "data")
        with pytest.raises(RunError, match="s3://bucket/runs/r1/data: "):
            open_run("s3://bucket/runs")


def test_a_server_that_goes_away_is_not_damage(here, server):
    run = open_run("s3://bucket/runs")
    server.stop()
    with pytest.raises(
        RunError, match="s3://bucket/runs/r1: it cannot be reached; check the network and AWS_ENDPOINT"
    ):
        len(run)
    assert run.health.damaged == {}


def test_a_profile_says_where_the_bucket_is_and_with_which_key(here, server, tmp_path, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    profile = f"[profile lab]\nregion = us-east-1\nendpoint_url = {server.url}\n"
    (tmp_path / "config").write_text(profile)
    (tmp_path / "keys").write_text("[lab]\naws_access_key_id = testing\naws_secret_access_key = a-secret-of-it\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert len(open_run("s3://bucket/runs")) == len(here)


def test_errors_name_what_to_do(here):
    with pytest.raises(RunError, match="no such bucket or repository exists; create it, or correct the URL"):
        open_run("s3://another/runs")
    with pytest.raises(RunError, match="there is nothing at s3://bucket/other"):
        open_run("s3://bucket/other")


def test_the_command_prints_a_run_in_a_bucket_and_nothing_else(here):
    words = [sys.executable, "-m", "rollout_plugins.cli.main", "stats", "s3://bucket/runs"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()[1:]] == [
        ["train", "1", "4"],
        ["train", "2", "4"],
    ]
    assert [line for line in done.stderr.splitlines() if "recording took" not in line] == []
