"""A run goes to a URL and comes back as it was; on the Hub it is a dataset that tells what it is."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from hub_server import hub_server
from test_mirror import answers, batch, contents, recorded

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.remote.folders import Folder


@pytest.fixture
def run(tmp_path):
    return recorded(tmp_path / "runs", steps=range(1, 4), trainer="My loop", model="tiny/model", run_id="mine")


def test_a_run_goes_there_and_comes_back(run, tmp_path, capsys):
    url = f"file://{tmp_path}/there"
    assert main(["push", str(run), url]) == 0
    assert f"{run} is in {url}/mine" in capsys.readouterr().out
    assert main(["pull", f"{url}/mine", str(tmp_path / "back")]) == 0
    assert contents(tmp_path / "back" / "mine") == contents(run)
    assert answers(tmp_path / "back" / "mine") == answers(run)


def test_what_is_there_is_not_sent_again_and_what_is_here_not_fetched(run, tmp_path, capsys, monkeypatch):
    there, sent = str(tmp_path / "there"), []
    send = Folder._send
    monkeypatch.setattr(Folder, "_send", lambda self, file: (sent.append(file.name), send(self, file)))
    main(["push", str(run), there])
    first, sent[:] = list(sent), []
    assert "data/train/001-00000-000000.parquet" in first
    main(["push", str(run), there])
    assert sent == ["run.json"]
    for wanted in ("2 files fetched", "1 file fetched"):
        capsys.readouterr()
        assert main(["pull", f"{there}/mine", str(tmp_path / "back")]) == 0
        assert wanted in capsys.readouterr().out


def test_parts_that_were_removed_here_come_back(tmp_path, capsys):
    options = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    run = recorded(tmp_path / "here", steps=range(1, 5), mirror=str(tmp_path / "there"), config=options, run_id="mine")
    with pytest.warns(UserWarning, match="rollouts pull"):
        (where,) = open_run(run).damaged.values()
    assert main(where.partition(": ")[2].split()[1:]) == 0
    assert "3 files fetched" in capsys.readouterr().out
    assert len(open_run(run)) == 16
    assert not open_run(run).damaged


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull", "memory://nothing/here"], "memory://nothing/here is not a run: no run.json and no data"),
        (["push", "RUN", "memory://x/runs", "--where", "reward > 1"], "filters are for datasets on the Hub"),
        (["push", "RUN", "hf://models/me/x"], "give hf://datasets/OWNER/NAME or hf://buckets/OWNER/NAME"),
        (["push", "RUN", "nowhere://x/runs"], "no filesystem is known for nowhere://"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run, words, said, capsys):
    assert main([str(run) if word == "RUN" else word for word in words]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.fixture
def hub(monkeypatch):
    with hub_server(monkeypatch) as server:
        yield server


def test_on_the_hub_a_run_is_a_private_dataset_with_a_card(run, hub, tmp_path, capsys):
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 0
    repo = hub.repos["me/mine"]
    assert repo["private"] is True
    assert {name for name in repo["files"] if name != "README.md"} == set(contents(run))
    card = repo["files"]["README.md"].decode()
    for line in (
        "| model | tiny/model |",
        "| rollouts | 12 train |",
        "path: data/train/*.parquet",
        "| `reward` | `double` |",
    ):
        assert line in card
    assert main(["pull", "hf://datasets/me/mine", str(tmp_path / "back")]) == 0
    assert answers(tmp_path / "back" / "mine") == answers(run)
    before = len(repo["commits"])
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 0
    assert repo["commits"][before:] == [["run.json"], ["README.md"]]


def test_public_only_when_told_and_another_run_is_not_mixed_in(run, hub, tmp_path, capsys):
    assert main(["push", str(run), "hf://datasets/me/open", "--public"]) == 0
    assert hub.repos["me/open"]["private"] is False
    other = recorded(tmp_path / "other", steps=(1,), run_id="other")
    assert main(["push", str(other), "hf://datasets/me/open"]) == 1
    assert "has another run, or other rollouts of this one" in capsys.readouterr().err


def test_a_journal_of_a_run_that_was_killed_is_pushed_as_a_part(run, hub):
    with RolloutRecorder(dir=run.parent, run_id="mine") as recorder:
        recorder.record(4, batch(4))
        recorder.flush()
        assert main(["push", str(run), "hf://datasets/me/mine"]) == 0
    names = [name for name in hub.repos["me/mine"]["files"] if name.startswith("data/")]
    assert names == ["data/train/001-00000-000000.parquet", "data/train/002-00000-000000.parquet"]


def test_the_card_says_which_rollouts_were_chosen(run, hub, tmp_path):
    assert main(["push", str(run), "hf://datasets/me/best", "--where", "reward >= 2"]) == 0
    card = hub.repos["me/best"]["files"]["README.md"].decode()
    assert '"where": "reward >= 2"' in card
    assert "| rollouts | 6 train |" in card
    main(["pull", "hf://datasets/me/best", str(tmp_path)])
    assert {rollout.reward for rollout in open_run(tmp_path / "best").rollouts()} == {2.0, 3.0}


def test_a_refusal_of_the_hub_says_what_to_do_and_no_token(run, hub, capsys):
    hub.refuses = [403]
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 1
    err = capsys.readouterr().err
    assert "check the credentials: HF_TOKEN, or `hf auth login`" in err
    assert os.environ["HF_TOKEN"] not in err
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 0


def test_a_mirror_on_the_hub_takes_few_commits(hub, tmp_path):
    run = recorded(tmp_path / "here", mirror="hf://datasets/me/runs")
    repo = hub.repos["me/runs"]
    assert repo["private"] is True
    assert repo["files"] == {f"{run.name}/{n}": d for n, d in contents(run).items()}
    assert len(repo["commits"]) <= 4


LOAD = """
import json, sys, datasets
found = datasets.load_dataset("me/mine")
print(json.dumps({"rows": {split: rows.num_rows for split, rows in found.items()}, "first": found["train"][0]["completion"][0]["content"]}))
"""


@pytest.mark.slow
def test_load_dataset_takes_it_split_by_train_and_eval(run, hub, tmp_path):
    with RolloutRecorder(dir=run.parent, run_id="mine") as recorder:
        recorder.record(4, batch(4), split="eval")
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 0
    about = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        check=False,
        env={**os.environ, **about},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"rows": {"train": 12, "eval": 4}, "first": "answer 1.0"}
    shutil.rmtree(tmp_path / "home")


def test_a_run_that_is_not_here_is_fetched_before_it_is_sent_on_or_pruned(run, tmp_path, capsys):
    main(["push", str(run), "memory://far/runs"])
    for words in (
        ["push", "memory://far/runs/mine", str(tmp_path)],
        ["prune", "memory://far/runs/mine", "--keep", "step = 1"],
    ):
        capsys.readouterr()
        assert main(words) == 1
        assert "is not on this machine: fetch it with `rollouts pull`" in capsys.readouterr().err
