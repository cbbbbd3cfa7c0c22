"""A run of thousands of small files is one run, and each file is opened once."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from reading import called, ids, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.errors import DamageWarning
from rollout_plugins.reading import small_files as small
from rollout_plugins.reading.runs import runs
from rollout_plugins.store import write as writing
from rollout_plugins.store.schema import FIELDS


def test_of_thousands_of_small_files_each_is_opened_once(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    monkeypatch.setattr(small, "MANY", 5)
    made = [one(step, n, tool_calls=(called("a"),) if step == 3 else ()) for step in range(1, 9) for n in range(4)]
    folder = write(tmp_path, made)
    stored = open_run(folder)
    assert (len(stored), stored.steps) == (32, list(range(1, 9)))
    assert ids(stored.rollouts(tool="a")) == ["3.0", "3.1", "3.2", "3.3"]
    assert ids(stored.rollouts(search="Answer 2 of step 5", order="-step")) == ["5.2"]
    assert ids(stored.rollouts(where="len(completion) = 1", limit=1)) == ["1.0"]
    assert stored.sql("select count(*) as n from messages where role = 'user'").to_pylist() == [{"n": 32}]
    assert stored.table(["reward/correct", "reward/format"], step=range(3, 5)).to_pydict() == {
        "reward/correct": [3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0, 7.0], "reward/format": [None] * 8
    }  # fmt: skip
    schema = stored.table(step=1).schema
    assert all(schema.field(name).type == kind for name, kind in FIELDS)
    opened = list(stored.rollouts())
    for path in stored.files:
        path.unlink()
    assert list(stored.rollouts()) == opened == made
    assert [len(list(stored.rollouts(step=step))) for step in stored.steps] == [4] * 8
    assert stored.stats()[2]["tool_calls"] == 4


def test_asking_for_numbers_and_rollouts_does_not_import_pandas(tmp_path):
    """PyArrow does, for any Python value that it makes an array of; importing it takes longer than most questions."""
    folder = write(tmp_path, steps(2))
    question = f"""
import sys
from rollout_plugins import open_run
run = open_run({str(folder)!r})
assert (len(run), len(run.stats()), len(list(run.rollouts(where="reward > 1", order="-reward", limit=2)))) == (8, 2, 2)
assert "pandas" not in sys.modules"""
    subprocess.run([sys.executable, "-c", question], check=True)


def test_small_files_that_do_not_fit_into_memory_are_read_from_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(small, "MANY", 2)
    monkeypatch.setattr(small, "MOST_BYTES", 1)
    monkeypatch.setattr(small, "AT_ONCE", 2)
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    made = steps(8)
    stored = open_run(write(tmp_path, made))
    assert (len(stored), list(stored.rollouts()), stored.health.damaged) == (32, made, {})
    assert ids(stored.rollouts(order="-step", where="index = 0")) == [f"{step}.0" for step in range(8, 0, -1)]
    assert [row["rollouts"] for row in stored.stats()] == [4] * 8


def test_a_live_run_of_many_small_files_is_refreshed_without_reading_them_again(tmp_path, monkeypatch):
    monkeypatch.setattr(small, "MANY", 2)
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    made, live = steps(5), writer(tmp_path)
    for step in range(1, 4):
        live.write("train", [r for r in made if r.step == step])
    stored = open_run(tmp_path)
    assert (len(stored), list(stored.rollouts())) == (12, made[:12])
    before = stored.files[1].read_bytes(), stored.files[1].stat()
    stored.files[1].write_bytes(bytes(len(before[0])))
    os.utime(stored.files[1], ns=(before[1].st_atime_ns, before[1].st_mtime_ns))
    live.write("train", made[12:16])
    live.write("eval", [replace(r, split="eval") for r in made[16:]])  # sorted before the files that are known
    stored.refresh()
    assert (len(stored), list(stored.rollouts(split="train")), stored.health.damaged) == (20, made[:16], {})
    for path in stored.files[1:3]:
        os.utime(path, (1, 1))
    stored.refresh()
    with pytest.warns(DamageWarning, match="000001.parquet cannot be read"):
        assert (len(stored), ids(stored.rollouts(step=2))) == (16, [])
    assert list(stored.health.damaged) == ["data/train/001-00000-000001.parquet"]


def test_of_many_small_files_only_those_asked_for_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(small, "MANY", 2)
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    stored = open_run(write(tmp_path, steps(6)))
    assert len(stored) == 24
    for path in stored.files[2:]:
        path.unlink()
    assert ids(stored.rollouts(step=range(1, 3))) == ids(steps(2))
    assert stored.health.damaged == {}


def test_journals_of_many_killed_attempts_are_one_run(tmp_path):
    made = [one(step, 0, attempt=step) for step in range(1, 9)]
    for rollout in made:
        writer(tmp_path, attempt=rollout.attempt).write("train", [rollout])
    stored = open_run(tmp_path)
    assert (len(stored), list(stored.rollouts()), stored.health.damaged) == (8, made, {})


def test_many_small_files_of_several_runs_are_asked_together(tmp_path, monkeypatch):
    monkeypatch.setattr(small, "MANY", 2)
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    for name in ("r1", "r2"):
        write(tmp_path, steps(3, run=name), run=name)
    found = runs(tmp_path).sql("select run_id, count(*) as n, min(prompt[1].content) as q from rollouts group by 1")
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [
        ("r1", 12, "question 0"),
        ("r2", 12, "question 0"),
    ]
