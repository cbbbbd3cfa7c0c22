"""Sinks that raise, hang or fall behind cost themselves alone."""

import shutil
import threading
import time
from pathlib import Path

import pytest
from faults import exits, raises, told
from store_rig import Sink, batch, pipeline, record, rollouts, run_in, started, until

from rollout_plugins import Drop, RolloutRecorder, hookimpl, open_run
from rollout_plugins.engine import outbox
from rollout_plugins.engine.sent_ledger import Ledger
from rollout_plugins.sinks.jsonl import JsonlSink


def test_a_sink_without_rollouts_on_its_rank_gets_the_start_and_the_end(tmp_path):
    sink = Sink()
    line = pipeline(sink)
    line.start(run_in(tmp_path, rank=1, world_size=2))
    line.submit(batch(rollouts(rank=1)))
    line.close()
    assert (sink.events, sink.ids) == (["start", "end"], [])


@pytest.mark.parametrize("removed_after", [2, 3])
def test_removed_lines_are_counted_during_the_run_and_sent_by_an_export(tmp_path, caplog, removed_after):
    with RolloutRecorder([JsonlSink()], dir=tmp_path) as recorder:
        for step in range(3):
            if step == removed_after:
                shutil.rmtree(Path(recorder.run.dir) / "jsonl")
            recorder.record(step, [{"prompt": "p", "completion": "c"}] * 4)
            assert recorder.flush(600)
        if removed_after == 3:
            shutil.rmtree(Path(recorder.run.dir) / "jsonl")
    stored = open_run(tmp_path)
    lost = 4 * removed_after
    assert (stored.health.drops, stored.health.unsent) == ({}, {"jsonl": lost})
    assert f"{lost} rollouts were removed from jsonl:{stored.dir}/jsonl since they were sent there" in caplog.text
    done = stored.export("jsonl")
    assert (done.sent, done.had) == (lost, 12 - lost)


def test_an_export_right_after_a_run_sends_removed_rollouts_although_the_sink_closes_slowly(tmp_path, monkeypatch):
    leave = Ledger.leave
    monkeypatch.setattr(Ledger, "leave", lambda self: time.sleep(0.3) or leave(self))
    with RolloutRecorder([JsonlSink()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}] * 4)
    shutil.rmtree(Path(recorder.run.dir) / "jsonl")
    assert open_run(tmp_path).export("jsonl").sent == 4


def test_a_sink_whose_gone_raises_was_sent_everything(tmp_path, caplog):
    class Odd(Sink):
        gone = "no method"

    with RolloutRecorder([Odd()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}] * 4)
    assert open_run(tmp_path).health.drops == {}
    assert told(caplog, "in gone")
    assert not told(caplog, "misses rollouts")


def test_faults_of_a_sink_after_the_store_closed_are_in_the_run(tmp_path):
    class Late(Sink):
        @hookimpl
        def export_traces(self, traces):
            until(lambda: open_run(tmp_path).attempts[-1]["ended"])
            return len(traces)

    class Later(Sink):
        @hookimpl
        def on_run_end(self):
            until(lambda: open_run(tmp_path).attempts[-1]["ended"])
            raise ValueError("wrong")

    with RolloutRecorder([Late(name="late"), Later(name="later")], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}])
    stored = open_run(tmp_path)
    assert (stored.health.plugin_errors, stored.health.drops) == ({"late": 1, "later": 1}, {})


def test_a_harmless_fault_of_a_sink_does_not_hide_a_harmful_one(tmp_path, caplog):
    class Odd(Sink):
        gone = "no method"

    calls = []
    sink = Odd(lambda: calls.append(1) or (len(calls) > 1 and raises()))
    with RolloutRecorder([sink], dir=tmp_path) as recorder:
        for step in (1, 2):
            recorder.record(step, [{"prompt": "p", "completion": "c"}] * 4)
    assert open_run(tmp_path).health.unsent == {"sink": 4}
    assert len(told(caplog, "in gone")) == len(told(caplog, "misses rollouts: it raised ValueError")) == 1


def test_the_queue_of_a_slow_sink_is_limited_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "LIMIT_BYTES", 10_000_000)
    gate = threading.Event()
    sink = Sink(gate.wait)
    with RolloutRecorder([sink], dir=tmp_path, sync=True) as recorder:
        for step in range(6):
            recorder.record(step, [{"prompt": "p", "completion": f"{n}" * 1_000_000} for n in range(4)])
        gate.set()
    assert len(sink.ids) == 8
    stored = open_run(tmp_path)
    assert (len(stored), stored.health.drops, stored.health.unsent) == (24, {}, {"sink": 16})


def cancels():
    raise GeneratorExit


def drops():
    raise Drop("not for sinks")


@pytest.mark.parametrize("act", [raises, exits, cancels, drops])
def test_a_sink_that_raises_affects_neither_the_store_nor_other_sinks(tmp_path, caplog, act):
    good, bad = Sink(name="good"), Sink(act, name="bad")
    run = record(tmp_path, *[rollouts() for _ in range(5)], plugins=(bad, good))
    assert len(run) == 20
    assert len(good.ids) == 20
    assert good.events == bad.events == ["start", "end"]
    assert run.health.unsent == {"bad": 20}
    assert len(told(caplog, "'bad' misses rollouts")) == 1


def test_a_sink_that_failed_is_called_again(tmp_path):
    calls = []
    sink = Sink(lambda: calls.append(1) or (len(calls) <= 4 and raises()))
    run = record(tmp_path, *[rollouts() for _ in range(6)], plugins=(sink,))
    assert len(sink.ids) == 8
    assert run.health.unsent == {"sink": 16}


def test_a_sink_that_hangs_delays_nothing_and_its_missed_rollouts_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.engine.outbox.LIMIT", 3)
    for_good = threading.Event()
    good, bad = Sink(name="good"), Sink(for_good.wait, name="bad")
    line = started(tmp_path, bad, good, end_seconds=0.5)
    for step in range(10):
        line.submit(batch(rollouts(), step=step))
        assert line.drain(60, sinks=False)
        until(lambda step=step: len(good.ids) == 4 * step + 4 and not line._lifecycle.outboxes[1].is_stuck)
    assert len(open_run(tmp_path)) == 40
    line.close()
    until(lambda: open_run(tmp_path).health.unsent == {"bad": 40})
    assert len(open_run(tmp_path)) == 40
    for_good.set()  # only now: nothing above waited until the bad sink was done


def test_a_slow_sink_gets_everything_in_its_queue(tmp_path):
    slow, quick = Sink(lambda: time.sleep(0.05), name="slow"), Sink(name="quick")
    line = started(tmp_path, slow, quick)
    for step in range(8):
        line.submit(batch(rollouts(), step=step))
    assert line.drain(600)
    assert len(slow.ids) == 32
    line.close()
    assert slow.events == ["start", "end"]
    assert open_run(tmp_path).health.drops == {}


def test_a_failing_sink_and_a_failing_hook_name_the_line_that_raised(tmp_path, caplog):
    class Fails(Sink):
        @hookimpl
        def on_rollout(self, rollout):
            {}["nothing"]

        @hookimpl
        def export_traces(self, traces):
            raises()

    with RolloutRecorder([Fails()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}])
    (sink,) = told(caplog, "sink 'sink' misses rollouts")
    (hook,) = told(caplog, "plugin 'sink' failed in on_rollout")
    line = Fails.export_traces.__code__.co_firstlineno + 2
    assert f"it raised ValueError('the sink is broken') at test_failing_sinks.py:{line} in export_traces" in sink
    line = Fails.on_rollout.__code__.co_firstlineno + 2
    assert f"KeyError('nothing') at test_failing_sinks.py:{line}" in hook
