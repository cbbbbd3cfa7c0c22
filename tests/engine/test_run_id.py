"""Which run a start belongs to, whatever the files that say so hold."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch import distributed

from rollout_plugins.engine.run_id import MARKER, Identity, identify, identify_loop, write_marker


@pytest.mark.parametrize("generation", ["x", None, -1, 1.5, float("inf"), [1], True])
def test_an_edited_marker_loses_only_its_number(tmp_path, generation):
    checkpoint, home = tmp_path / "checkpoint-3", tmp_path / "home"
    checkpoint.mkdir()
    (home / "r1").mkdir(parents=True)
    (checkpoint / MARKER).write_text(json.dumps({"run": "r1", "generation": generation}))
    found = identify(home, "key", checkpoint, 3, None)
    assert (found.id, found.attempt, found.generation, found.resumed_from) == ("r1", 2, 0, 3)


def test_a_marker_can_only_name_a_run_folder(tmp_path):
    checkpoint, home = tmp_path / "checkpoint-3", tmp_path / "home"
    home.mkdir()
    checkpoint.mkdir()
    (checkpoint / MARKER).write_text(json.dumps({"run": "..", "generation": 1}))
    assert identify(home, "key", checkpoint, 3, None).id != ".."


def resumed(tmp_path):
    checkpoint, home = tmp_path / "checkpoint-3", tmp_path / "home"
    checkpoint.mkdir()
    (home / "r1").mkdir(parents=True)
    (checkpoint / MARKER).write_text(json.dumps({"run": "r1", "generation": 7}))
    return home, checkpoint


def test_processes_that_resume_one_checkpoint_concurrently_are_separate_attempts(tmp_path):
    home, checkpoint = resumed(tmp_path)
    with ThreadPoolExecutor(8) as at_once:
        found = list(at_once.map(lambda key: identify(home, str(key), checkpoint, 3, None), range(8)))
    assert sorted(one.attempt for one in found) == list(range(2, 10))
    assert {one.attempt: one.resumed_from for one in found if one.resumed_from} == {
        2: 3
    }  # again would hide the others
    assert {(one.id, one.generation) for one in found} == {("r1", 7)}


def launched(monkeypatch):
    """Two ranks that can agree."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return store


def test_ranks_that_resume_together_are_one_attempt_and_another_launch_is_the_next(tmp_path, monkeypatch):
    home, checkpoint = resumed(tmp_path)
    store = launched(monkeypatch)
    found = [identify(home, launch, checkpoint, 3, None) for launch in ("a", "b", "a", "b")]
    assert [one.attempt for one in found] == [2, 3, 2, 3]
    assert [one.resumed_from for one in found] == [3, None, 3, None]
    assert store


def test_a_node_with_an_empty_disk_takes_run_and_attempt_from_other_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.engine.run_id.WAIT_FOR_OWNER", timedelta(minutes=10))
    home, checkpoint = resumed(tmp_path)
    write_marker(checkpoint, tmp_path / "disk" / "r1", 1, generation=7)
    (home / "r1" / "run.json").write_text(json.dumps({"attempts": [{"attempt": 1}, {"attempt": 2}]}))
    store = launched(monkeypatch)
    with ThreadPoolExecutor(1) as first:
        asked_first = first.submit(identify, tmp_path / "empty", "key", checkpoint, 3, None)
        known = identify(home, "key", checkpoint, 3, None)
        assert (asked_first.result().id, asked_first.result().attempt) == (known.id, known.attempt) == ("r1", 3)
    assert store


def test_a_run_without_its_folder_continues_as_the_next_attempt_each_time(tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    checkpoint.mkdir()
    home = tmp_path / "home"
    write_marker(checkpoint, home / "r1", 4, generation=7)
    for attempt in (5, 6, 7):
        found = identify(home, "key", checkpoint, 3, None)
        assert (found.id, found.attempt, found.generation, found.resumed_from) == ("r1", attempt, 7, 3)
        shutil.rmtree(home)
    branch = identify(tmp_path / "another", "key", checkpoint, 3, None)
    assert (branch.id != "r1", branch.attempt, branch.resumed_from) == (True, 1, 3)


def test_a_loop_that_resumes_without_its_folder_is_not_the_first_attempt(tmp_path, monkeypatch):
    for resumed_from, attempt in ((None, 1), (3, 2)):
        options = {"file": "run.json", "world_size": 1}
        assert identify_loop(tmp_path, 0, "r1", resumed_from, **options).attempt == attempt
    (tmp_path / "home" / "r1").mkdir(parents=True)
    (tmp_path / "home" / "r1" / "run.json").write_text(json.dumps({"attempts": [{"attempt": 2}]}))
    store = launched(monkeypatch)
    options = {"file": "run.json", "world_size": 2}
    key = f"{tmp_path / 'home'}|loop|0|"
    distributed.PrefixStore("rollout_plugins", store).set(key, json.dumps(vars(Identity("r1"))))
    assert identify_loop(tmp_path / "home", 0, "r1", None, **options).attempt == 3
