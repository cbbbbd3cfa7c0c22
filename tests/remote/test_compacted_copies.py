"""Compacted runs that are copied: no rollout counts twice, whoever compacted what, and none loses its text."""

import shutil
from collections import Counter

import pyarrow.parquet as pq
import pytest
from mirrored import answers, batch, contents, recorded
from store_rig import until

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.remote import mirror as mirroring
from rollout_plugins.remote import pruning as prune
from rollout_plugins.remote.folder_sync import Copying
from rollout_plugins.remote.folders import Folder
from rollout_plugins.remote.url_places import place
from rollout_plugins.store import small_parts
from rollout_plugins.store.joined_parts import read_joined_parts

pytestmark = pytest.mark.usefixtures("fast_mirror")


OFTEN = {"mirror": {"seal_seconds": 1e-9}}
ALL = sorted(f"answer {step}.{n}" for step in (1, 2, 3) for n in range(4))


def compacted(run):
    assert main(["compact", str(run)]) == 0


@pytest.fixture
def nodes(tmp_path):
    """Two folders of a run's two nodes, and the mirror of both."""
    options = {"run_id": "mine", "world_size": 2, "mirror": str(tmp_path / "there"), "config": OFTEN}
    found = [recorded(tmp_path / f"node{rank}", (1, 2, 3), rank=rank, **options) for rank in (0, 1)]
    return *found, tmp_path / "there" / "mine"


@pytest.mark.parametrize("how", ["one after the other", "as one"])
def test_each_node_may_compact_its_folder_and_send_it(nodes, how):
    *here, there = nodes
    for node in here:
        compacted(node)
    for paths in [[node] for node in here] if how == "one after the other" else [here]:
        folder = open_run(paths).dir
        copying = Copying(folder, Folder(place(there)))
        assert copying.send(copying.pending(everything=True))
        assert Counter(answers(there)) == Counter(ALL * 2)


def test_what_a_part_holds_is_known_there_before_the_part(nodes):
    node, _, there = nodes
    compacted(node)
    pending = [file.name for file in Copying(node, Folder(place(there))).pending()]
    assert pending == ["compacted.json", "data/train/001-00000-000003.parquet", "run.json"]


def test_a_run_that_two_machines_compacted_counts_no_rollout_twice_after_a_pull(nodes, tmp_path):
    first, second, there = nodes
    compacted(first)
    assert main(["push", str(first), str(there.parent)]) == 0
    assert main(["pull", str(there), str(second.parent)]) == 0  # the second node's folder has all of it then
    compacted(second)
    for folder in (first, second):
        assert main(["pull", str(there), str(folder.parent)]) == 0
        assert Counter(answers(folder)) == Counter(ALL * 2)
    assert main(["push", str(second), str(there.parent)]) == 0
    assert Counter(answers(there)) == Counter(ALL * 2)
    assert main(["pull", str(there), str(tmp_path / "back")]) == 0
    assert Counter(answers(tmp_path / "back")) == Counter(ALL * 2)


def test_parts_that_others_hold_are_not_fetched(nodes, tmp_path):
    node, _, there = nodes
    compacted(node)
    assert main(["push", str(node), str(there.parent)]) == 0
    assert main(["pull", str(there), str(tmp_path / "back")]) == 0
    names = [name for name in contents(tmp_path / "back" / "mine") if name.startswith("data/train/001-00000")]
    assert names == ["data/train/001-00000-000003.parquet"]


def test_parts_that_came_back_and_were_joined_are_not_missed(tmp_path):
    options = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    run = recorded(tmp_path / "here", (1, 2, 3), run_id="mine", mirror=str(tmp_path / "there"), config=options)
    assert main(["pull", str(tmp_path / "there" / "mine"), str(run.parent)]) == 0
    compacted(run)
    assert not open_run(run).health.unreadable
    assert sorted(answers(run)) == ALL


@pytest.mark.parametrize("first", ["prune", "compact"])
def test_the_mirror_keeps_the_text_that_was_pruned_here_also_when_the_run_is_compacted(nodes, first):
    node, _, there = nodes
    words = {"prune": ["prune", str(node), "--keep", "step = 2", "--yes"], "compact": ["compact", str(node)]}
    for command in sorted(words, reverse=first == "prune"):
        assert main(words[command]) == 0
    assert main(["push", str(node), str(there.parent)]) == 0
    assert sorted(answers(there)) == sorted(ALL * 2)
    shutil.rmtree(there)  # a place that has nothing of the run gets what there is
    assert main(["push", str(node), str(there.parent)]) == 0
    found = open_run(there)
    assert (len(found), len([one for one in found.rollouts() if one.completion])) == (12, 4)


@pytest.fixture
def overtaken(nodes, monkeypatch):
    """A run whose parts another process joins as soon as a command has listed its files."""
    node, _, _ = nodes

    def after(owner, name):
        listed = getattr(owner, name)

        def list_then_compact(*args, **options):
            found = listed(*args, **options)
            monkeypatch.undo()
            compacted(node)
            return found

        monkeypatch.setattr(owner, name, list_then_compact)

    return node, after


def test_a_push_that_a_compaction_overtakes_sends_every_rollout(overtaken, tmp_path):
    node, after = overtaken
    after(Copying, "pending")
    assert main(["push", str(node), str(tmp_path / "elsewhere")]) == 0
    assert sorted(answers(tmp_path / "elsewhere" / "mine")) == ALL


def test_a_pruning_that_a_compaction_overtakes_prunes_every_rollout(overtaken):
    node, after = overtaken
    after(prune, "find_parts")
    assert main(["prune", str(node), "--keep", "step = 2", "--yes"]) == 0
    assert len([one for one in open_run(node).rollouts() if one.completion]) == 4


def test_a_mirror_that_keeps_up_has_each_rollout_in_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(small_parts, "AT_ONCE", 4)
    monkeypatch.setattr(mirroring, "POLL_SECONDS", 0.5)  # joining parts takes less

    def parts(folder):
        return {f"data/train/{path.name}": path for path in folder.glob("data/train/*.parquet")}

    here, there = tmp_path / "here" / "mine", tmp_path / "there" / "mine"
    with RolloutRecorder(dir=here.parent, run_id="mine", mirror=str(there.parent), config=OFTEN) as recorder:
        for step in range(1, 8):
            recorder.record(step, batch(step))
            assert recorder.flush()
            until(lambda: parts(here).keys() - read_joined_parts(here).keys() <= parts(there).keys())
    assert read_joined_parts(here)
    assert sum(pq.read_metadata(path).num_rows for path in parts(there).values()) == len(open_run(there)) == 28


def test_a_run_that_joins_its_parts_counts_each_rollout_once_in_the_mirror(tmp_path, monkeypatch):
    monkeypatch.setattr(small_parts, "AT_ONCE", 4)
    made = {"run_id": "mine", "mirror": str(tmp_path / "there")}
    run, there = recorded(tmp_path / "here", range(1, 7), **made, config=OFTEN), tmp_path / "there" / "mine"
    every = sorted(f"answer {step}.{n}" for step in range(1, 7) for n in range(4))
    (name,) = read_joined_parts(run)
    assert sorted(answers(there)) == every
    assert open_run(there).health.unreadable == []

    small = {"mirror": {"seal_seconds": 1e-9, "keep_local": 0}}
    recorded(tmp_path / "here", (7, 8), **made, config=small)  # the next attempt
    every += [f"answer {step}.{n}" for step in (7, 8) for n in range(4)]
    assert not (run / name).exists()
    assert open_run(run).health.damaged
    assert main(["pull", str(there), str(run.parent)]) == 0
    assert sorted(answers(run)) == sorted(answers(there)) == every
    assert open_run(run).health.unreadable == []
