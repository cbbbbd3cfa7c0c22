"""Threads, forks and ends of processes: none loses rollouts, and none waits for ever."""

import os
import subprocess
import sys
import threading
import time

import pytest
from faults import exits, plugin_with, says, send
from processes import environment
from store_rig import Sink, batch, pipeline, record, rollouts, run_in, started, until

from rollout_plugins import hookimpl, open_run


def test_hooks_run_off_the_training_thread_and_on_it_with_sync(tmp_path):
    threads = []

    class RecordArguments:
        @hookimpl
        def on_rollout(self, rollout):
            threads.append(threading.current_thread())

    for sync in (False, True):
        record(tmp_path / str(sync), rollouts(1), plugins=(RecordArguments(),), sync=sync)
    assert threads[0] is not threading.current_thread()
    assert threads[1] is threading.current_thread()


def test_sync_lets_ctrl_c_through_and_nothing_else(tmp_path):
    line = started(tmp_path, plugin_with("on_rollout", says(KeyboardInterrupt())), sync=True)
    with pytest.raises(KeyboardInterrupt):
        line.submit(batch(rollouts()))
    line.close()
    line = started(tmp_path, plugin_with("on_rollout", exits), sync=True)
    line.submit(batch(rollouts()))
    line.close()


def test_close_may_be_called_again_and_the_pipeline_started_again(tmp_path):
    sink = Sink()
    line = started(tmp_path, sink)
    send(line, rollouts(), 1)
    line.close()
    line.close()
    line.submit(batch(rollouts(), step=9))
    line.start(run_in(tmp_path, attempt=2, resumed_from=1), line.generation)
    send(line, rollouts(), 2)
    line.close()
    assert [r.step for r in open_run(tmp_path).rollouts()] == [1] * 4 + [2] * 4
    assert sink.events == ["start", "end"] * 2


def test_a_pipeline_collected_on_its_own_thread_does_not_wait_for_itself(tmp_path):
    line = started(tmp_path)

    def build():
        line.close()  # what a finalizer does when a collection happens to run here
        return rollouts()

    line.submit(batch(rollouts(), build=build))
    until(
        lambda: not [t for t in threading.enumerate() if t.name == "closing-rollouts"] and not line._worker.is_running
    )
    assert len(open_run(tmp_path)) == 4
    assert [path.suffix for path in (tmp_path / "r1" / "data").glob("*/*")] == [".parquet"]


def test_a_forked_child_neither_writes_nor_hangs(tmp_path):
    line = started(tmp_path, Sink())
    send(line, rollouts(), 1)
    with line._worker._changed, line.counters._lock:  # as when another thread held them in the moment of the fork
        pid = os.fork()
        if pid == 0:
            line._worker._changed = threading.Condition(threading.Lock())
            line._worker._changed.acquire()
            line.submit(batch(rollouts(), step=2))
            line.request_sync()
            line.later(lambda: None)
            line.drain(60)
            line.pop_metrics("train")
            line.own_metrics()
            line.start(run_in(tmp_path))
            line.close()
            os._exit(7)
    end = time.monotonic() + 120
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < end, os.kill(pid, 9)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(found[1]) == 7
    send(line, rollouts(), 3)
    line.close()
    assert [r.step for r in open_run(tmp_path).rollouts()] == [1] * 4 + [3] * 4


def test_a_pipeline_made_before_a_fork_works_in_the_child_that_starts_it(tmp_path):
    line = pipeline()
    pid = os.fork()
    if pid == 0:
        line.start(run_in(tmp_path))
        line.submit(batch(rollouts()))
        line.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(open_run(tmp_path)) == 4


END = """
import sys, time, weakref
from pathlib import Path
from store_rig import *
line = started(Path(sys.argv[1]), Sink(lambda: time.sleep(0.01)))
for step in range(50):
    line.submit(batch(rollouts(), step=step))
"""
ENDINGS = {
    "a finalizer, as the callback has": ("owner = Sink(); weakref.finalize(owner, line.close)", 0, 200, ".parquet"),
    "a finalizer and an exception": ("owner = Sink(); weakref.finalize(owner, line.close); 1 / 0", 1, 200, ".parquet"),
    "drained, never closed": ("assert line.drain(60, sinks=False)", 0, 200, ".arrows"),
    "nothing at all": ("", 0, 0, ".arrows"),
}


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_an_interpreter_that_ends_leaves_a_run_that_can_be_read(tmp_path, ending):
    code, status, least, suffix = ENDINGS[ending]
    done = subprocess.run(
        [sys.executable, "-c", END + code, str(tmp_path)], capture_output=True, check=False, env=environment()
    )
    assert done.returncode == status, done.stderr.decode()
    if least:
        run = open_run(tmp_path)
        assert len(run) >= least
        assert run.health.damaged == {}
        assert {path.suffix for path in (tmp_path / "r1" / "data").glob("*/*")} == {suffix}


def test_threads_end_when_the_run_does(tmp_path):
    before = set(threading.enumerate())
    for number in range(3):
        record(tmp_path / str(number), rollouts(1), plugins=(Sink(),))
    until(lambda: not {t for t in threading.enumerate() if t.name.startswith("rollouts-")} - before)


def test_metrics_are_averaged_and_returned_once(tmp_path):
    class Says:
        numbers = iter([1, 3])

        @hookimpl
        def rollout_metrics(self, rollouts):
            return {"x": next(self.numbers)}

    line = started(tmp_path, Says())
    send(line, rollouts(), 1)
    send(line, rollouts(), 2)
    assert line.pop_metrics("train") == {"x": 2.0}
    assert line.pop_metrics("train") == {}
    own = line.own_metrics()
    assert own["bytes_written"] > 0
    assert own["seconds/worker"] > 0
    line.close()
