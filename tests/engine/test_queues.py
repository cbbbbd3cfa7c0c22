"""Queues that fill and ends that take long: nothing waits for them, and what they cost is counted."""

import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from faults import says, send, told
from processes import environment
from store_rig import Sink, batch, pipeline, record, rollouts, run_in, started, until

from rollout_plugins import hookimpl, open_run
from rollout_plugins.errors import SetupError


def test_a_host_with_equal_indices_or_other_ranks_loses_no_rollout(tmp_path):
    made = [replace(r, index=0, rank=3) for r in rollouts(4)]
    run = record(tmp_path, made)
    assert len({r.id for r in run.rollouts()}) == 4
    assert {r.rank for r in run.rollouts()} == {0}


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)])
def test_rollouts_that_cannot_be_built_are_counted_and_the_next_ones_recorded(tmp_path, caplog, error):
    def build():
        raise error

    line = started(tmp_path)
    line.submit(batch([], build=build, count=7))
    send(line, rollouts(), 2)
    line.close()
    assert len(open_run(tmp_path)) == 4
    assert open_run(tmp_path).health.drops == {"build_failed": 7}
    assert len(told(caplog, "7 rollouts of step 1 could not be built")) == 1


class Gate:
    """A host whose rollouts take as long to build as the test likes."""

    def __init__(self):
        self.open = threading.Event()
        self.entered = threading.Event()

    def build(self):
        self.entered.set()
        assert self.open.wait(600)
        return rollouts()


def test_a_full_queue_drops_and_counts_the_complete_newest_batch(tmp_path, caplog):
    gate = Gate()
    line = started(tmp_path, queue_bytes=2500)
    line.submit(batch(build=gate.build, made=rollouts(), step=1))
    for step in range(2, 6):
        line.submit(batch(rollouts(), step=step))
    gate.open.set()  # only now: had a submit waited for room, the gate would have given up and lost step 1
    assert line.drain(60)
    send(line, rollouts(), 6)
    line.close()
    run = open_run(tmp_path)
    assert [r.step for r in run.rollouts()] == [n for n in (1, 2, 6) for _ in range(4)]
    assert run.health.drops == {"queue_full": 12}
    assert [r.generation for r in run.rollouts()] == [n for n in (0, 1, 5) for _ in range(4)]
    assert len(told(caplog, "recording is")) == 1


def test_a_batch_larger_than_the_limit_fits_into_an_empty_queue(tmp_path):
    class Tells:
        ended = 0

        @hookimpl
        def on_run_end(self):
            self.ended += 1

    tells = Tells()
    gate = Gate()
    line = started(tmp_path, tells, queue_bytes=10)
    line.submit(batch(build=gate.build, made=rollouts(), size=10**9))
    line.request_sync()
    threading.Timer(0.1, gate.open.set).start()
    line.close()
    assert len(open_run(tmp_path)) == 4
    assert tells.ended == 1
    assert [path.suffix for path in (tmp_path / "r1" / "data").glob("*/*")] == [".parquet"]


def test_on_full_block_waits_and_loses_nothing(tmp_path):
    gate = Gate()
    line = started(tmp_path, queue_bytes=1500, on_full="block")
    line.submit(batch(build=gate.build, made=rollouts(), step=1))
    waiting = threading.Thread(target=lambda: [line.submit(batch(rollouts(), step=n)) for n in (2, 3)])
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    gate.open.set()
    waiting.join(600)
    line.close()
    assert [r.step for r in open_run(tmp_path).rollouts()] == [n for n in (1, 2, 3) for _ in range(4)]
    assert open_run(tmp_path).health.drops == {}


def test_unfinished_batches_are_counted_as_lost_unless_they_finish_later(tmp_path, caplog):
    gate = Gate()
    line = started(tmp_path, end_seconds=0.3)
    line.submit(batch(build=gate.build, made=rollouts(4)))
    line.submit(batch(rollouts(3)))
    assert gate.entered.wait(600)
    line.close()
    assert line.counters.drops == {"not_finished_at_end": 7}
    assert len(told(caplog, "7 rollouts are not in the store")) == 1
    gate.open.set()
    until(lambda: open_run(tmp_path).attempts[0]["ended"])
    run = open_run(tmp_path)
    assert (len(run), run.health.drops) == (4, {"not_finished_at_end": 3})


@pytest.mark.parametrize("interrupted", [False, True])
def test_losses_behind_a_hung_batch_are_written_before_the_process_ends(tmp_path, interrupted, monkeypatch):
    gate = Gate()
    line = started(tmp_path, Sink(), end_seconds=0.3)
    line.submit(batch(rollouts(2), step=1))
    assert line.drain(60)
    line.submit(batch(build=gate.build, made=rollouts(4), step=2))
    line.submit(batch(rollouts(3), step=3))
    assert gate.entered.wait(600)
    if interrupted:  # a second Ctrl-C while the end is waited for
        monkeypatch.setattr(line._lifecycle, "end_sinks", says(KeyboardInterrupt()))
        monkeypatch.setattr("rollout_plugins.engine.pipeline.ABANDON_SECONDS", 0.01)
        with pytest.raises(KeyboardInterrupt):
            line.close()
    else:
        line.close()
    run = open_run(tmp_path)  # as another process sees it when this one has ended here
    assert (len(run), run.health.drops, run.attempts[0]["ended"]) == (2, {"not_finished_at_end": 7}, None)
    gate.open.set()
    until(lambda: open_run(tmp_path).attempts[0]["ended"])
    assert (len(open_run(tmp_path)), open_run(tmp_path).health.drops) == (6, {"not_finished_at_end": 3})


@pytest.mark.parametrize("value", [-1, "soon", float("nan"), float("inf"), True])
def test_a_limit_for_the_end_that_is_not_a_number_of_seconds_is_refused_by_name(monkeypatch, value):
    with pytest.raises(SetupError, match="end_seconds is"):
        pipeline(end_seconds=value)
    monkeypatch.setenv("ROLLOUT_PLUGINS_END_SECONDS", str(value))
    with pytest.raises(SetupError, match="ROLLOUT_PLUGINS_END_SECONDS is"):
        pipeline()


def test_the_limit_for_the_end_is_30_seconds_by_default(monkeypatch):
    monkeypatch.delenv("ROLLOUT_PLUGINS_END_SECONDS")
    assert pipeline().end_seconds == 30
    monkeypatch.setenv("ROLLOUT_PLUGINS_END_SECONDS", "7.5")
    assert pipeline().end_seconds == 7.5
    assert pipeline(end_seconds=2).end_seconds == 2


class Hangs:
    """A plugin that takes many seconds, from `since` on, and then waits for an event."""

    def __init__(self, clock, seconds, event, since=None):
        self.clock, self.seconds, self.event, self.since = clock, seconds, event, since
        self.entered = threading.Event()

    @hookimpl
    def on_rollout(self, rollout):
        self.entered.set()
        if self.since:
            self.since.wait(600)
        self.clock.now += self.seconds
        self.event.wait(600)


def test_a_plugin_that_hangs_at_the_end_does_not_affect_the_store(tmp_path, clock):
    for_good = threading.Event()

    line = started(tmp_path, Hangs(clock, 300, for_good), end_seconds=120)  # 40 for a plugin then; 600 before
    line.submit(batch(rollouts()))
    line.close()
    for_good.set()
    assert len(open_run(tmp_path)) == 4
    assert line.counters.drops == {}


def test_what_sinks_miss_when_plugins_hang_at_the_end_is_counted(tmp_path, monkeypatch, clock):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.2")
    for_good, closed, before = threading.Event(), threading.Event(), set(threading.enumerate())

    hanging = [Hangs(clock, 1, for_good, closed) for _ in range(4)]
    line = started(tmp_path, *hanging, Sink(), end_seconds=0.3)
    line.submit(batch(rollouts()))
    assert hanging[0].entered.wait(600)
    line.close()
    closed.set()
    until(lambda: line.counters.unsent == {"sink": 4})
    for_good.set()
    until(lambda: open_run(tmp_path).health.unsent == {"sink": 4})
    assert len(open_run(tmp_path)) == 4
    until(lambda: not [one for one in {*threading.enumerate()} - before if one.name == "rollouts-hooks"])


def test_a_restarted_run_waits_for_the_worker(tmp_path):
    gate = Gate()
    line = started(tmp_path, end_seconds=0.1)
    line.submit(batch(build=gate.build, made=rollouts(4)))
    assert gate.entered.wait(600)
    line.close()
    line.start(run_in(tmp_path), line.generation)
    line.submit(batch(rollouts(3)))
    assert not line.drain(0.2)
    gate.open.set()
    assert line.drain(60)
    line.close()
    until(lambda: open_run(tmp_path).attempts[0]["ended"])
    run = open_run(tmp_path)
    assert [rollout.generation for rollout in run.rollouts()] == [0] * 4 + [1] * 3
    assert run.health.drops == {}


def test_early_losses_of_a_resumed_attempt_belong_to_it(tmp_path):
    gate = Gate()
    line = started(tmp_path)
    line.submit(batch(build=gate.build))
    assert gate.entered.wait(600)
    line.start(run_in(tmp_path, attempt=2, resumed_from=1), 1)
    line.count("before_attach", 3)
    gate.open.set()
    line.close()
    assert [attempt["drops"] for attempt in open_run(tmp_path).attempts] == [{}, {"before_attach": 3}]


EXIT = """
import sys, threading, weakref
from pathlib import Path
from store_rig import *
owners = []
for number in range(100):
    sink = Sink(threading.Event().wait)
    line = started(Path(sys.argv[1]) / str(number), sink, end_seconds=6)
    line.submit(batch(rollouts()))
    assert line.drain(60, sinks=False)
    owners.append(sink)
    weakref.finalize(sink, line.close)
"""


@pytest.mark.slow
def test_many_runs_that_hang_when_the_interpreter_exits_share_one_limit(tmp_path):
    each_in_turn = 100 * 6
    subprocess.run([sys.executable, "-c", EXIT, str(tmp_path)], env=environment(), check=True, timeout=each_in_turn)
    assert [len(open_run(path)) for path in tmp_path.iterdir()] == [4] * 100


OUTLIVES = """
import threading
from rollout_plugins.engine.deadline import Deadline

def trains():
    threading.main_thread().join()
    began = []
    for _ in range(3):
        with Deadline(30).waiting() as until:
            began.append(until(0))
    print(began[1] < began[2])

threading.Thread(target=trains).start()
"""


def test_runs_on_a_thread_that_outlives_the_main_program_have_a_limit_each(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVES], env=environment(), check=True, capture_output=True, text=True
    )
    assert done.stdout == "True\n"
