"""A run that is sealed often has few files, without anybody's doing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sealed_often import record
from store_rig import rollouts, run_in

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.store import join_parts as joining
from rollout_plugins.store import small_parts
from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.store.write import RunWriter


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(small_parts, "AT_ONCE", 4)


def names(folder):
    return sorted(path.name for path in folder.glob("data/train/*.parquet"))


def steps_of(run):
    return [(rollout.step, rollout.index) for rollout in run.rollouts()]


def expected(steps):
    return [(step, index) for step in steps for index in range(4)]


def test_a_run_of_many_small_parts_has_few_files_and_every_rollout(tmp_path):
    record(tmp_path, range(1, 42)).close()
    run = open_run(tmp_path)
    assert len(names(run.dir)) < 12
    assert steps_of(run) == expected(range(1, 42))
    assert (run.health.damaged, run.health.unreadable) == ({}, [])


def test_a_loop_that_has_begun_reads_on_while_parts_are_joined(tmp_path):
    line = record(tmp_path, range(1, 5))
    loop = iter(open_run(tmp_path).rollouts())
    first = next(loop)
    record(tmp_path, range(5, 30), line)
    assert [first.step, *(rollout.step for rollout in loop)] == [step for step, _ in expected(range(1, 5))]
    line.close()


def test_parts_that_cannot_be_joined_stay_and_the_run_says_so(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(joining, "replace_file", fail)
    record(tmp_path, range(1, 10)).close()
    run = open_run(tmp_path)
    assert steps_of(run) == expected(range(1, 10))
    assert run.health.drops == {}
    (told,) = [record.getMessage() for record in caplog.records if "small files" in record.getMessage()]
    assert told.startswith(f"cannot join the small files of {run.dir}, so reading it takes longer: ")
    assert "no space left on device" in told


PROGRAM = """
import os, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from sealed_often import record
from rollout_plugins.store import small_parts
small_parts.AT_ONCE = 4
moments = {moment}

def counted(function):
    def call(*args, **options):
        global moments
        if "data" in str(args[0]) or "compacted" in str(args[-1]):
            moments -= 1
            if moments == 0:
                os._exit(9)
        return function(*args, **options)
    return call

from rollout_plugins.store import join_parts as joining
joining.record_joined_parts, Path.replace, Path.unlink = map(counted, (joining.record_joined_parts, Path.replace, Path.unlink))
record(Path({folder!r}), range(1, 7))
os._exit(0)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_costs_nothing_and_counts_nothing_twice(tmp_path):
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support")]
    for moment in itertools.count(1):
        folder = tmp_path / str(moment)
        folder.mkdir()
        program = PROGRAM.format(paths=paths, moment=moment, folder=str(folder))
        code = subprocess.run([sys.executable, "-c", program], env=os.environ, check=False).returncode
        assert code in {0, 9}
        run = open_run(folder)
        stored = steps_of(run)
        assert stored == expected(range(1, len(stored) // 4 + 1))
        assert (run.health.damaged, run.health.unreadable) == ({}, [])
        if code == 0:
            break
    assert moment > 10


def test_a_process_that_goes_on_gives_no_file_the_name_of_one_that_was_joined(tmp_path):
    for rank in (0, 1):
        writer = RunWriter(run_in(tmp_path, rank=rank, world_size=2))
        writer.write("train", [replace(one, id=f"{rank}.{one.index}", rank=rank) for one in rollouts(2)])
        writer.close({"rollouts": {"train": 2}})
    assert main(["compact", str(tmp_path / "r1")]) == 0
    writer = RunWriter(run_in(tmp_path, rank=1, world_size=2))
    writer.write("train", [replace(one, id=f"new{one.index}", rank=1, generation=1) for one in rollouts(2)])
    writer.close({"rollouts": {"train": 4}})
    found = [rollout.id for rollout in open_run(tmp_path)]
    assert sorted(found) == ["0.0", "0.1", "1.0", "1.1", "new0", "new1"]
    assert not set(names(tmp_path / "r1")) & {
        Path(name).name for held in read_joined_parts(tmp_path / "r1").values() for name in held
    }
