"""Which run a start belongs to, whatever the files that say so hold."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import distributed

from rollout_plugins.engine.run_id import MARKER, identify


@pytest.mark.parametrize("generation", ["x", None, -1, 1.5, float("inf"), [1], True])
def test_a_marker_that_somebody_edited_costs_only_its_number(tmp_path, generation):
    checkpoint, home = tmp_path / "checkpoint-3", tmp_path / "home"
    checkpoint.mkdir()
    (home / "r1").mkdir(parents=True)
    (checkpoint / MARKER).write_text(json.dumps({"run": "r1", "generation": generation}))
    found = identify(home, "key", checkpoint, 3, None)
    assert (found.id, found.attempt, found.generation, found.resumed_from) == ("r1", 2, 0, 3)


def test_a_marker_leads_to_no_folder_but_a_runs(tmp_path):
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


def test_processes_that_resume_one_checkpoint_at_once_are_attempts_of_their_own(tmp_path):
    home, checkpoint = resumed(tmp_path)
    with ThreadPoolExecutor(8) as at_once:
        found = list(at_once.map(lambda key: identify(home, str(key), checkpoint, 3, None), range(8)))
    assert sorted(one.attempt for one in found) == list(range(2, 10))
    assert {one.attempt: one.resumed_from for one in found if one.resumed_from} == {
        2: 3
    }  # again would hide the others
    assert {(one.id, one.generation) for one in found} == {("r1", 7)}


def test_ranks_that_resume_together_are_one_attempt_and_another_launch_is_the_next(tmp_path, monkeypatch):
    home, checkpoint = resumed(tmp_path)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    found = [identify(home, launch, checkpoint, 3, None) for launch in ("a", "b", "a", "b")]
    assert [one.attempt for one in found] == [2, 3, 2, 3]
    assert [one.resumed_from for one in found] == [3, None, 3, None]
