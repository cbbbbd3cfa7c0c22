"""A run that several nodes wrote, each to a disk of its own: their folders, copied side by side, are one run."""

import json
import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from rollout_plugins import RolloutRecorder, open_run, runs
from rollout_plugins.cli.main import main
from rollout_plugins.content.imaging import file_of
from rollout_plugins.errors import DamageWarning, RunError

COLOURS = "red", "blue"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_CACHE", str(tmp_path / "cache"))


def batch(step, rank):
    picture = {"type": "image", "image": Image.new("RGB", (4, 4), COLOURS[rank])}
    message = {"role": "user", "content": [picture, {"type": "text", "text": f"question {step}"}]}
    return [{"prompt": [message], "completion": f"{step} {rank} {n}", "reward": float(n)} for n in range(2)]


def node(folder, rank, steps, **options):
    given = {"run_id": "mine", "world_size": 2, "model": "tiny/model", **options}
    with RolloutRecorder(dir=folder / f"node{rank}", rank=rank, **given) as recorder:
        for step in steps:
            recorder.record(step, batch(step, rank))
    return Path(recorder.run.dir)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two nodes, the second of which has a clock that is an hour behind; both go back to step 2 once."""
    folder, now = tmp_path_factory.mktemp("recorded"), time.time
    with pytest.MonkeyPatch.context() as patched:
        for rank, behind in enumerate((0, 3600)):
            patched.setattr(time, "time", lambda behind=behind: now() - behind)
            node(folder, rank, (1, 2, 3))
            node(folder, rank, (3, 4), resumed_from=2)
    return folder


@pytest.fixture
def nodes(recorded, tmp_path):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return [tmp_path / "node0" / "mine", tmp_path / "node1" / "mine"]


def said(run, **filters):
    return [(one.attempt, one.rank, one.step, one.completion[0]["content"]) for one in run.rollouts(**filters)]


def in_one_folder(nodes, folder):
    for each in nodes:
        shutil.copytree(each, folder, dirs_exist_ok=True)
    return open_run(folder)


def test_folders_of_nodes_are_the_run_that_a_shared_disk_would_have(nodes, tmp_path):
    run, shared = open_run(nodes), in_one_folder(nodes, tmp_path / "shared" / "mine")
    assert said(run) == said(shared)
    assert said(run, superseded=True) == said(shared, superseded=True)
    assert run.stats() == shared.stats()
    assert [(one["attempt"], one["rank"]) for one in run.attempts] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert run.info.id == "mine"
    assert run.name == "tiny · mine"
    assert run.place == f"{nodes[0]} and 1 other folder"
    assert not run.health.unreadable
    assert len({rollout.id for rollout in run}) == len(run) == 16


def test_order_comes_from_steps_and_attempts_whatever_the_clocks_say(nodes):
    run = open_run(list(reversed(nodes)))
    assert [(attempt, step) for attempt, _, step, _ in said(run)] == sorted((a, s) for a, _, s, _ in said(run))
    assert {(attempt, step) for attempt, _, step, _ in said(run)} == {(1, 1), (1, 2), (2, 3), (2, 4)}
    assert {rank for _, rank, _, _ in said(run, step="last")} == {0, 1}


def test_a_folder_of_all_nodes_has_one_run(nodes, tmp_path, capsys):
    assert len(runs(tmp_path)) == 1
    assert said(open_run(tmp_path)) == said(open_run(nodes))
    assert [main(["stats", *map(str, words)]) for words in ([tmp_path], nodes)] == [0, 0]
    captured = capsys.readouterr()
    one, other = captured.out[: len(captured.out) // 2], captured.out[len(captured.out) // 2 :]
    assert one == other
    assert main(["sql", *map(str, nodes), "select count(*) as n from rollouts"]) == 0
    assert capsys.readouterr().out == "n\n16\n"


def test_pictures_and_annotations_of_every_node_are_there(nodes):
    ids = [open_run(each)[0].id for each in nodes]
    for each, ident in zip(nodes, ids, strict=True):
        open_run(each).annotate("judge", [{"id": ident, "score": 0.5}])
    run = open_run(nodes)
    assert [run.get(ident).extra["judge.score"] for ident in ids] == [0.5, 0.5]
    pictures = [
        Image.open(file_of(run.get(ident).images[0], run.dir)).convert("RGB").getpixel((0, 0)) for ident in ids
    ]
    assert pictures == [(255, 0, 0), (0, 0, 255)]
    assert run.annotate("human", [{"id": ident, "good": True} for ident in ids]) == 2
    assert open_run(nodes[0]).get(ids[0]).extra["human.good"] is True
    assert open_run(nodes).count(where="human.good") == 2


def test_drops_of_all_nodes_count(nodes):
    for number, each in enumerate(nodes, 1):
        file = next(each.glob("run*.json"))
        facts = json.loads(file.read_text())
        facts["attempts"][0]["drops"] = {"queue_full": number}
        file.write_text(json.dumps(facts))
    assert open_run(nodes).health.drops == {"queue_full": 3}


def test_what_one_node_records_meanwhile_is_seen_after_a_refresh(nodes, tmp_path):
    run = open_run(nodes)
    before = len(run)
    node(tmp_path, 1, (5,), resumed_from=4)
    run.refresh()
    assert len(run) == before + 2


def test_a_file_that_is_damaged_on_one_node_is_named_and_costs_itself_alone(nodes):
    next(nodes[1].glob("data/train/002-*.parquet")).write_bytes(b"not Parquet")
    run = open_run(nodes)
    with pytest.warns(DamageWarning, match="data/train/002-00001-000000.parquet cannot be read"):
        assert len(run) == 12


def test_contradictions_between_nodes_are_said(nodes, tmp_path, capsys):
    file = nodes[1] / "run-00001.json"
    file.write_text(file.read_text().replace("tiny/model", "large/model"))
    line = "rank 1 says that model is 'large/model', and rank 0 that it is 'tiny/model'"
    with pytest.warns(DamageWarning, match=line):
        assert open_run(nodes).health.contradictions == [line]
    assert main(["stats", *map(str, nodes)]) == 0
    assert line in capsys.readouterr().err


def test_a_part_of_a_run_says_that_it_is_one(nodes, capsys):
    line = "of 2 ranks, rank 1 alone wrote here; of nodes without a shared disk, name all folders"
    with pytest.warns(DamageWarning, match=line):
        assert open_run(nodes[1]).health.absent == [line]
    for command in (["stats"], ["show"], ["sql"], ["doctor", "--offline"]):
        assert main([command[0], str(nodes[1]), *command[1:], *["select 1"] * (command == ["sql"])]) == 0
        assert line in "".join(capsys.readouterr())
    assert open_run(nodes).health.absent == []


def test_attempts_that_left_nothing_are_said(nodes, tmp_path, capsys):
    node(tmp_path / "new disk", 0, (5,), resumed_from=4)
    node(tmp_path / "new disk", 1, (5,), resumed_from=4)
    assert main(["stats", str(tmp_path / "new disk")]) == 0
    assert "of 2 attempts, 1 attempt left nothing here; what they recorded may be elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize(("resumed_from", "said"), [(8, 1), (4, 0)])
def test_an_attempt_that_trained_and_whose_disk_was_lost_is_said(tmp_path, capsys, resumed_from, said):
    """What a mirror has of it is its start; where the next attempt starts shows that it trained."""
    node(tmp_path / "first", 0, (1, 2, 3, 4), world_size=1)
    with RolloutRecorder(dir=tmp_path / "first" / "node0", run_id="mine", resumed_from=4) as recorder:
        recorder.record(5, batch(5, 0))
        recorder.flush()
        shutil.copytree(tmp_path / "first", tmp_path / "there", ignore=shutil.ignore_patterns("002-*"))
    node(tmp_path / "there", 0, (9,), world_size=1, resumed_from=resumed_from)
    assert main(["stats", str(tmp_path / "there")]) == 0
    line = "attempt 2 trained to step 8 and left no rollouts here; they may be elsewhere, or lost"
    assert capsys.readouterr().err.count(line) == said


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            lambda first, folder: node(folder, 1, (1,), run_id="theirs"),
            "these are different runs, .*: mine in .*; open",
        ),
        (
            lambda first, folder: shutil.copytree(first, folder / "copy"),
            "hold the same attempt of the same rank of mine",
        ),
    ],
)
def test_folders_that_are_not_of_one_run_are_refused(nodes, tmp_path, other, why):
    with pytest.raises(RunError, match=why):
        open_run([nodes[0], other(nodes[0], tmp_path / "other")])


def test_a_copy_of_a_run_stays_another_run(tmp_path):
    first = node(tmp_path, 0, (1,))
    shutil.copytree(first, tmp_path / "copy")
    assert [len(run) for run in runs(tmp_path)] == [2, 2]


@pytest.mark.needs(part="remote")
def test_it_can_be_pruned_and_sent_but_is_compacted_folder_by_folder(nodes, tmp_path, capsys):
    words = list(map(str, nodes))
    assert main(["prune", str(tmp_path), "--keep", "step = 1", "--yes"]) == 0
    assert [one.completion != () for one in open_run(nodes).rollouts(superseded=True)] == [True] * 4 + [False] * 16
    assert main(["push", str(tmp_path), f"file://{tmp_path}/there"]) == 0
    assert open_run(tmp_path / "there" / "mine").stats() == open_run(nodes).stats()
    assert main(["compact", *words]) == 1
    assert "compact one folder after the other" in capsys.readouterr().err
