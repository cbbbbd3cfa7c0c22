"""Training data sent to the Hub, on a stand-in for it that the real client talks to."""

import io

import pyarrow.parquet as pq
import pytest
from hub import hub as hub_server
from reading import one, write

from rollout_plugins.cli.main import main

PLACE = "hf://datasets/me/pairs"


@pytest.fixture
def hub(monkeypatch):
    with hub_server(monkeypatch) as server:
        yield server


def test_a_dataset_and_its_card_are_sent_to_a_private_repository(hub, tmp_path, capsys):
    run = write(tmp_path, [one(1, index, reward=float(index % 2), finish="stop") for index in range(4)])
    words = ["export", str(run), "--to", "dpo", "-o", PLACE]
    assert main(words) == 0, capsys.readouterr().err
    assert f"2 rows in {PLACE}" in capsys.readouterr().out
    repo = hub.repos["me/pairs"]
    assert repo["private"]
    assert pq.read_table(io.BytesIO(repo["files"]["train.parquet"])).num_rows == 2
    assert "path: train.parquet" in repo["files"]["README.md"].decode()
    assert main(words) == 1
    assert f"{PLACE} has README.md and train.parquet already" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
