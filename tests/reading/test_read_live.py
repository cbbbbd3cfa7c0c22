"""A run is read while it is written, sealed or removed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from reading import ids, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.reading import query_session as session


def test_a_live_run_is_read_and_refreshed(tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0)])
    stored = open_run(tmp_path)
    assert len(stored) == 1
    live.write("train", [one(2, 0)])
    live.write("eval", [one(2, 0, split="eval", id="e")])
    stored.refresh()
    assert [r.split for r in stored.rollouts()] == ["train", "eval", "train"]
    assert stored.steps == [1, 2]
    live.close()
    stored.refresh()
    assert len(stored) == 3
    assert not list(stored.dir.rglob("*.arrows"))


def test_a_journal_that_is_sealed_after_the_run_was_opened(tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0), one(1, 1)])
    stored = open_run(tmp_path)
    live.close()
    assert ids(stored.rollouts()) == ["1.0", "1.1"]
    assert stored.health.damaged == {}


def test_a_journal_that_is_sealed_between_listing_and_reading(tmp_path, monkeypatch):
    live = writer(tmp_path)
    live.write("train", [one(1, 0), one(1, 1)])
    listed = session.find_parts

    def list_then_seal(folder):
        found = listed(folder)
        live.close()
        return found

    monkeypatch.setattr(session, "find_parts", list_then_seal)
    stored = open_run(tmp_path)
    assert ids(stored.rollouts()) == ["1.0", "1.1"]
    assert stored.health.damaged == {}


def test_a_journal_that_is_sealed_while_it_is_being_opened(tmp_path, monkeypatch):
    live = writer(tmp_path)
    live.write("train", [one(1, n) for n in range(100)])
    opening = pa.OSFile

    def seal_then_open(path):
        monkeypatch.undo()
        live.close()
        return opening(path)

    monkeypatch.setattr(pa, "OSFile", seal_then_open)
    stored = open_run(tmp_path)
    assert len(list(stored.rollouts())) == 100
    assert stored.health.damaged == {}


def threads():
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.mark.slow
def test_runs_that_are_only_held_open_take_no_threads(tmp_path):
    write(tmp_path, steps(1))
    before = threads()
    runs = [open_run(tmp_path) for _ in range(80)]
    assert [len(run) for run in runs] == [4] * 80
    assert threads() - before < 80  # a few for each of the eight that stay connected
    assert [run.count(step=1) for run in runs] == [4] * 80
