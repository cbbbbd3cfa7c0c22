"""kill -9 at any moment: a generation for which `drain()` had said True is readable, and nothing is invalid."""

import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from processes import environment, worker
from store_rig import batch, pipeline, rollouts, run_in

from rollout_plugins import open_run

pytestmark = pytest.mark.slow

KILLS = 20


def begin(folder):
    command = [sys.executable, *worker("kill", folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


def kill_after(child, number):
    """Kill it at a moment after so many generations. Those it had told of as safe."""
    told = [child.stdout.readline() for _ in range(number)]
    time.sleep(random.random() / 100)
    child.send_signal(signal.SIGKILL)
    rest, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors.decode()
    return [int(line) for line in b"".join([*told, rest]).splitlines(keepends=True) if line.endswith(b"\n")]


def test_a_process_killed_at_any_moment_keeps_synced_rollouts_and_resumes(tmp_path):
    dice = random.Random(8)
    folders = [tmp_path / str(number) for number in range(KILLS)]
    sealed = 0
    child = begin(folders[0])
    for folder, following in zip(folders, [*folders[1:], None], strict=True):
        safe = kill_after(child, dice.randint(1, 80))
        child = begin(following) if following else None
        sealed += check(folder, safe)
    assert sealed > 3
    for folder in folders[::5]:
        go_on(folder)


def go_on(folder):
    """The next attempt in the folder of a killed one: nothing of either is missing."""
    before = len(open_run(folder))
    line = pipeline()
    line.start(run_in(folder, attempt=2, resumed_from=10**6))
    line.submit(batch(rollouts(2, columns={"number": -1})))
    assert line.drain(120)
    line.close()
    run = open_run(folder)
    assert len(run) == before + 2
    assert run.health.damaged == {}


def check(folder, safe):
    """Everything safe is there and whole; says how many files were Parquet already."""
    assert safe
    run = open_run(folder)
    assert run.info.id == "r1"
    found = {}
    for rollout in run.rollouts():
        assert rollout.completion == ({"role": "assistant", "content": "hi"},)
        assert rollout.columns["pad"] == "é" * 3000
        found.setdefault(rollout.columns["number"], []).append(rollout.index)
    assert set(safe) <= set(found)
    assert all(indices == [0, 1, 2, 3] for indices in found.values())
    assert run.health.damaged == {}
    for file in run.files:
        pq.ParquetFile(file).read()
    return len(run.files)
