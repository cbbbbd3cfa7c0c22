"""A run goes to a URL and comes back as it was; on the Hub it is a dataset that tells what it is."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from hub import hub as hub_server
from mirrored import answers, batch, contents, recorded

from rollout_plugins import RolloutRecorder, open_run, runs
from rollout_plugins.cli.main import main
from rollout_plugins.remote.folders import BARS, Folder


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
        (where,) = open_run(run).health.damaged.values()
    assert main(where.partition(": ")[2].split()[1:]) == 0
    assert "3 files fetched" in capsys.readouterr().out
    assert len(open_run(run)) == 16
    assert not open_run(run).health.damaged


def test_parts_come_back_to_the_folder_that_they_were_removed_from_whatever_it_is_called(tmp_path, capsys):
    options = {"run_id": "mine", "config": {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}}
    recorded(tmp_path / "other", (9,), mirror=str(tmp_path / "there"), run_id="mine")
    run = recorded(tmp_path / "here it is", (1, 2, 3), mirror=str(tmp_path / "there"), **options)
    renamed = run.rename(run.with_name("renamed"))
    with pytest.warns(UserWarning, match="rollouts pull"):
        (line,) = open_run(renamed).health.damaged.values()
    assert (tmp_path / "there" / "mine-2").as_uri() in line
    assert main(shlex.split(line.partition(": rollouts ")[2])) == 0
    assert [path.name for path in renamed.parent.iterdir()] == ["renamed"]
    assert answers(renamed) == [f"answer {step}.{n}" for step in (1, 2, 3) for n in range(4)]
    assert not open_run(renamed).health.unreadable


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull", "memory://nothing/here"], "memory://nothing/here is not a run: no run.json and no data"),
        (
            ["pull", "RUN", "/dev/null"],
            "/dev/null/mine.* cannot be written to: Not a directory; make room there, or give",
        ),
        (["push", "RUN", "memory://x/runs", "--where", "reward > 9"], "no rollout of .* matches"),
        (["push", "RUN", "memory://x/runs", "--sessions", "--where", "reward > 9"], "0 rollouts would be a file each"),
        (["push", "RUN", "hf://models/me/x"], "give hf://datasets/OWNER/NAME or hf://buckets/OWNER/NAME"),
        (["push", "RUN", "nowhere://x/runs"], "no filesystem is known for nowhere://"),
        (["push", "RUN", "memory://x/runs", "--public"], "--public is for the Hub; who can read memory://x/runs is"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run, words, said, capsys):
    assert main([str(run) if word == "RUN" else word for word in words]) == 1
    err = capsys.readouterr().err
    assert re.search(said, err)
    assert err.count("\n") == 1


@pytest.fixture
def hub(monkeypatch):
    with hub_server(monkeypatch) as server:
        yield server


def test_on_the_hub_a_run_is_in_a_private_dataset_with_a_card(run, hub, tmp_path):
    assert main(["push", str(run), "hf://datasets/me/runs"]) == 0
    repo = hub.repos["me/runs"]
    assert repo["private"] is True
    assert {name for name in repo["files"] if name != "README.md"} == {f"mine/{name}" for name in contents(run)}
    card = repo["files"]["README.md"].decode()
    for line in (
        "| model | tiny/model |",
        "| rollouts | 12 train |",
        'path: "mine/data/train/**/*.parquet"',
        'load_dataset("me/runs", "mine", split="train")',
        "| `reward` | `double` |",
    ):
        assert line in card
    assert main(["pull", "hf://datasets/me/runs", str(tmp_path / "back")]) == 0
    assert answers(tmp_path / "back" / "mine") == answers(run)
    before = len(repo["commits"])
    assert main(["push", str(run), "hf://datasets/me/runs"]) == 0
    assert repo["commits"][before:] == [["mine/run.json"], ["README.md"]]


@pytest.mark.parametrize("url", ["hf://datasets/me/runs", "hf://buckets/me/runs"])
def test_nobody_else_can_read_what_is_sent_unless_that_was_said(run, hub, tmp_path, url, capsys, caplog):
    assert main(["push", str(run), url, "--public"]) == 0
    assert main(["push", str(run), url]) == 1
    assert (
        f"{url} is public, so everybody could read these rollouts; if they may, say --public"
        in capsys.readouterr().err
    )
    recorded(tmp_path / "other", steps=(1,), run_id="other", mirror=url)
    assert caplog.text.count(f"{url} is public: everybody can read the rollouts there") == 1
    private = url.replace("runs", "mine")
    assert main(["push", str(run), private]) == 0
    assert main(["push", str(run), private, "--public"]) == 1
    assert f"{private} exists and is private; make it public in its settings" in capsys.readouterr().err


def test_where_nothing_is_chosen_no_dataset_is_made(run, hub):
    assert main(["push", str(run), "hf://datasets/me/runs", "--where", "reward > 99"]) == 1
    assert hub.repos == {}


def test_a_dataset_may_have_several_runs_of_which_the_newest_is_loaded_by_default(run, hub, tmp_path, capsys):
    assert main(["push", str(run), "hf://datasets/me/runs", "--public"]) == 0
    assert hub.repos["me/runs"]["private"] is False
    other = recorded(tmp_path / "other", steps=(1,), run_id="other")
    same = recorded(tmp_path / "same", steps=(7,), run_id="mine")
    for each in (other, same):
        assert main(["push", str(each), "hf://datasets/me/runs", "--public"]) == 0
    card = hub.repos["me/runs"]["files"]["README.md"].decode()
    configs = [line.partition(": ")[2] for line in card.splitlines() if "config_name" in line]
    assert configs == ['"mine-2"', '"other"', '"mine"']
    assert card.index('"mine-2"') < card.index("default: true") < card.index('"other"')
    assert "Other runs here: other, mine." in card
    assert [len(each) for each in runs("hf://datasets/me/runs")] == [12, 4, 4]
    assert main(["pull", "hf://datasets/me/runs"]) == 1
    assert "has 3 runs, mine, mine-2, other; give the URL of one" in capsys.readouterr().err


def test_a_journal_of_a_run_that_was_killed_is_pushed_as_a_part(run, hub):
    with RolloutRecorder(dir=run.parent, run_id="mine") as recorder:
        recorder.record(4, batch(4))
        recorder.flush()
        assert main(["push", str(run), "hf://datasets/me/runs"]) == 0
    names = [name for name in hub.repos["me/runs"]["files"] if name.startswith("mine/data/")]
    assert names == ["mine/data/train/001-00000-000000.parquet", "mine/data/train/002-00000-000000.parquet"]


def test_a_damaged_journal_keeps_nothing_else_here_and_is_told_of(run, tmp_path, capsys):
    journal = run / "data" / "train" / "001-00000-000009.arrows"
    journal.write_bytes(b"\xff\xff\xff\xff\x10\0\0\0" + b"no schema " * 10)
    assert main(["push", str(run), str(tmp_path / "there")]) == 3
    assert f"data/train/{journal.name} cannot be read and is left out" in capsys.readouterr().err
    assert len(open_run(tmp_path / "there")) == len(open_run(run))


@pytest.mark.parametrize("url", ["hf://datasets/me/best", "memory://chosen/best"])
def test_some_rollouts_are_a_run_of_their_own_that_misses_nothing(run, hub, tmp_path, url, capsys):
    assert main(["push", str(run), url, "--where", "reward >= 2", "--limit", "5"]) == 0
    assert main(["pull", url, str(tmp_path / "back")]) == 0
    found = open_run(tmp_path / "back")
    assert [rollout.reward for rollout in found] == [2.0, 3.0, 2.0, 3.0, 2.0]
    assert found.dir.name.startswith("mine-chosen-")
    assert not found.health.unreadable
    filters = '{"where": "reward >= 2", "limit": 5}'
    assert found.health.absent == [f"of its rollouts, those were chosen that fit {filters}"]
    assert f"5 of 12 rollouts of {run} are in {url}/" in capsys.readouterr().out
    if url.startswith("hf"):
        card = hub.repos["me/best"]["files"]["README.md"].decode()
        assert '"where": "reward >= 2"' in card
        assert "| rollouts | 5 train |" in card


def test_sessions_are_in_the_format_that_the_hub_shows(hub, tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    said = [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    with RolloutRecorder(dir=tmp_path, run_id="mine", model="tiny/model") as recorder:
        recorder.record(3, [{"prompt": "1 + 1?", "completion": said, "reward": 1.0}])
    assert main(["push", str(tmp_path), "hf://datasets/me/chats", "--sessions"]) == 0
    files = hub.repos["me/chats"]["files"]
    ident = open_run(tmp_path)[0].id
    head, *messages = map(json.loads, files[f"mine-sessions/sessions/train/000003/{ident}.jsonl"].splitlines())
    assert (head["type"], head["harness"], head["id"]) == ("session", "rollout-plugins", ident)
    assert (head["name"], head["reward"], head["run"]) == ("step 3, reward 1.000", 1.0, "mine")
    asked = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert {message["type"] for message in messages} == {"message"}
    assert [message["message"] for message in messages] == [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": "",
            "reasoningContent": "hm",
            "toolCalls": [asked],
            "model": "tiny/model",
        },
        {"role": "tool", "content": "2", "toolCallId": "c1"},
        {"role": "assistant", "content": "two", "model": "tiny/model"},
    ]
    assert 'path: "mine-sessions/sessions/train/**/*.jsonl"' in files["README.md"].decode()
    before = len(hub.repos["me/chats"]["commits"])
    assert main(["push", str(tmp_path), "hf://datasets/me/chats", "--sessions"]) == 0
    assert hub.repos["me/chats"]["commits"][before:] == [["README.md"]]


def test_a_refusal_of_the_hub_says_what_to_do_and_no_token(run, hub, capsys):
    hub.refuses = [403]
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 1
    err = capsys.readouterr().err
    assert "check the credentials: HF_TOKEN, or `hf auth login`" in err
    assert os.environ["HF_TOKEN"] not in err
    assert main(["push", str(run), "hf://datasets/me/mine"]) == 0


def test_a_mirror_on_the_hub_has_the_layout_of_a_push_and_takes_few_commits(hub, tmp_path):
    run = recorded(tmp_path / "here", mirror="hf://datasets/me/runs", run_id="mine")
    repo = hub.repos["me/runs"]
    assert repo["private"] is True
    assert len(repo["commits"]) <= 5
    mirrored = dict(repo["files"])
    assert main(["push", str(run), "hf://datasets/me/pushed"]) == 0
    pushed = {name: data.replace(b"me/pushed", b"me/runs") for name, data in hub.repos["me/pushed"]["files"].items()}
    assert mirrored == pushed
    assert {f"mine/{name}": data for name, data in contents(run).items()}.items() <= mirrored.items()


def test_a_card_counts_what_the_dataset_has_and_not_what_is_left_on_one_machine(hub, tmp_path, caplog):
    options = {"run_id": "mine", "world_size": 2, "config": {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}}
    for rank in (0, 1):
        recorded(tmp_path / str(rank), (1, 2, 3), rank=rank, mirror="hf://datasets/me/runs", **options)
        card = hub.repos["me/runs"]["files"]["README.md"].decode()
        assert f"| rollouts | {12 * (rank + 1)} train |" in card
        assert "| steps | 3 |" in card


def test_a_card_names_each_rollout_once_and_how_many_have_no_text(hub, tmp_path):
    options = {"run_id": "mine", "config": {"mirror": {"seal_seconds": 1e-9}}}
    run = recorded(tmp_path / "here", (1, 2, 3), mirror="hf://datasets/me/runs", **options)
    for words in (["compact", str(run)], ["push", str(run), "hf://datasets/me/runs"]):
        assert main(words) == 0
    card = hub.repos["me/runs"]["files"]["README.md"].decode()
    assert 'path: ["mine/data/train/001-00000-000003.parquet"]' in card
    assert "text removed since" not in card
    for words in (["prune", str(run), "--keep", "step = 1", "--yes"], ["push", str(run), "hf://datasets/me/new"]):
        assert main(words) == 0
    assert "| text removed since | of 8 rollouts |" in hub.repos["me/new"]["files"]["README.md"].decode()


LOAD = """
import json, sys, datasets
found = [datasets.load_dataset(name) for name in sys.argv[1:]]
print(json.dumps([{split: rows.num_rows for split, rows in one.items()} for one in found]))
print(json.dumps([one["train"][0]["completion"][0]["content"] for one in found[:2]]))
"""


@pytest.mark.slow
def test_load_dataset_takes_what_was_pushed_or_mirrored_split_by_train_and_eval(run, hub, tmp_path):
    with RolloutRecorder(dir=run.parent, run_id="mine", mirror="hf://datasets/me/mirrored") as recorder:
        recorder.record(4, batch(4), split="eval")
    assert main(["push", str(run), "hf://datasets/me/pushed"]) == 0
    assert main(["push", str(run), "hf://datasets/me/chats", "--sessions"]) == 0
    often = {"mirror": "hf://datasets/me/joined", "config": {"mirror": {"seal_seconds": 1e-9}}}
    joined = recorded(tmp_path / "often", **often)
    for words in (["compact", str(joined)], ["push", str(joined), "hf://datasets/me/joined"]):
        assert main(words) == 0  # the dataset has the small parts, and the one that holds them
    about = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, "me/mirrored", "me/pushed", "me/chats", "me/joined"],
        check=False,
        env={**os.environ, **about},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows, first = map(json.loads, done.stdout.splitlines()[-2:])
    assert rows == [{"train": 12, "eval": 4}] * 2 + [{"train": 36, "eval": 12}, {"train": 8}]
    assert first == ["answer 1.0"] * 2
    shutil.rmtree(tmp_path / "home")


def test_a_run_that_is_not_here_is_fetched_before_it_is_sent_on_or_pruned(run, tmp_path, capsys):
    main(["push", str(run), "memory://far/runs"])
    for words in (
        ["push", "memory://far/runs/mine", str(tmp_path)],
        ["prune", "memory://far/runs/mine", "--keep", "step = 1"],
    ):
        capsys.readouterr()
        assert main(words) == 1
        assert f"{words[1]} is not on this machine: fetch it with `rollouts pull`" in capsys.readouterr().err


def test_runs_that_are_sent_at_once_leave_the_clients_progress_bars_as_they_were():
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    first, second = BARS.hidden(), BARS.hidden()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert are_progress_bars_disabled()
    second.__exit__(None, None, None)
    assert are_progress_bars_disabled() == before
