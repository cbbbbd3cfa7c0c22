"""Disks that fail, queues that fill, plugins and sinks that misbehave: what it costs, and that somebody is told."""

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from store_rig import Sink, batch, pipeline, record, rollouts, run_in, started, until

from rollout_plugins import Drop, Rollout, RolloutRecorder, ToolCall, hookimpl, open_run
from rollout_plugins.engine import outbox
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.store import write
from rollout_plugins.store.columns import to_batch


def told(caplog, text):
    """Warnings that say this."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and text in r.getMessage()]


def noise(generation, size=50_000):
    """Rollouts that do not compress away."""
    return rollouts(4, columns={"number": generation, "pad": os.urandom(size).hex()})


def send(line, made, step):
    line.submit(batch(made, step=step))
    assert line.drain(30)


# --- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting takes root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path):
    """A file that takes all the room there is."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def remount(folder, how):
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


@pytest.mark.parametrize("outage", ["full", "read-only"])
def test_an_outage_of_the_disk_costs_its_records_and_says_so_once_at_each_end(small_disk, caplog, outage):
    ballast = small_disk / "ballast"
    line = started(small_disk)
    for step in range(3):
        send(line, noise(step), step)
    if outage == "full":
        fill(ballast)
    else:
        for shard in line._storage._writer._shards.values():
            shard.close()
            shard._fd = os.open(
                os.devnull, os.O_RDONLY
            )  # a file held open for writing keeps a disk from turning read-only
        remount(small_disk, "ro")
    for step in range(3, 8):
        send(line, noise(step), step)
    line.request_sync()
    assert line.drain(30)
    ballast.unlink() if outage == "full" else remount(small_disk, "rw")
    for step in range(8, 10):
        send(line, noise(step), step)
    line.close()
    run = open_run(small_disk)
    assert [r.columns["number"] for r in run.rollouts()] == [n for n in (0, 1, 2, 8, 9) for _ in range(4)]
    assert run.damaged == {}
    assert run.drops == {"store_failed": 20}
    assert len(told(caplog, "cannot write to")) == 1
    assert str(small_disk) in told(caplog, "cannot write to")[0]
    assert told(caplog, "works again")[0].endswith("20 rollouts were lost meanwhile")
    assert len(told(caplog, "")) == 2


def test_a_disk_that_is_full_to_the_last_byte_leaves_no_half_generation(small_disk):
    line = started(small_disk)
    for step in range(12):
        send(line, noise(step, 100_000), step)
    line.close()
    run = open_run(small_disk)
    numbers = [r.columns["number"] for r in run.rollouts()]
    assert 8 <= len(numbers) < 48
    assert all(numbers.count(number) == 4 for number in numbers)
    assert run.damaged == {}
    assert len(numbers) + line.counters.drops["store_failed"] == 48


def test_a_defect_of_ours_costs_only_the_rollouts_that_bring_it_out(tmp_path, monkeypatch, caplog):
    def defective(rollouts, lost):
        if any(rollout.columns.get("odd") for rollout in rollouts):
            raise KeyError("a secret")
        return to_batch(rollouts, lost)

    monkeypatch.setattr(write, "to_batch", defective)
    line = started(tmp_path)
    first, second, *others = noise(0)
    send(line, [first, replace(second, columns={"odd": True}), *others], 0)
    send(line, noise(1), 1)
    line.close()
    run = open_run(tmp_path)
    assert [r.columns["number"] for r in run.rollouts()] == [0] * 3 + [1] * 4
    assert run.drops == {"store_failed": 1}
    assert told(caplog, "1 of 4 rollouts are lost, because no row could be made of them (KeyError in defective)")
    assert "a secret" not in caplog.text


def test_a_second_outage_is_told_and_counted_by_itself(small_disk, caplog):
    line = started(small_disk)
    for step, count in ((1, 2), (2, 3)):
        fill(small_disk / "ballast")
        for _ in range(count):
            send(line, noise(step), step)
        (small_disk / "ballast").unlink()
        send(line, noise(step), step)
    line.close()
    assert [re.search(r"(\d+) rollouts", text)[1] for text in told(caplog, "works again")] == ["8", "12"]
    assert len(open_run(small_disk)) == 8


def test_a_disk_that_is_read_only_from_the_start_costs_nothing_but_records(small_disk, caplog):
    remount(small_disk, "ro")
    line = started(small_disk)
    send(line, rollouts(), 1)
    remount(small_disk, "rw")
    send(line, rollouts(), 2)
    line.close()
    run = open_run(small_disk)
    assert len(run) == 4
    assert run.drops == {"store_failed": 4}
    assert len(told(caplog, "")) == 2


def test_a_folder_that_vanishes_is_made_again_and_recording_goes_on(tmp_path, caplog):
    line = started(tmp_path)
    send(line, rollouts(), 1)
    shutil.rmtree(tmp_path / "r1")
    send(line, rollouts(), 2)
    send(line, rollouts(), 3)
    line.close()
    run = open_run(tmp_path)
    assert [r.step for r in run.rollouts()] == [2] * 4 + [3] * 4
    assert run.info.id == "r1"
    assert told(caplog, "") == []


def test_a_file_in_the_way_of_the_folder_is_an_outage_like_others(tmp_path, caplog):
    (tmp_path / "r1").write_text("x")
    line = started(tmp_path)
    send(line, rollouts(), 1)
    (tmp_path / "r1").unlink()
    send(line, rollouts(), 2)
    line.close()
    assert [r.step for r in open_run(tmp_path).rollouts()] == [2] * 4
    assert line.counters.drops == {"store_failed": 4}
    assert len(told(caplog, "")) == 2


def test_two_pipelines_write_one_folder_without_harming_each_other(tmp_path):
    lines = [started(tmp_path) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda line=line: [send(line, rollouts(), n) for n in range(20)]) for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for line in lines:
        line.close()
    run = open_run(tmp_path)
    assert sorted(r.step for r in run.rollouts()) == sorted([*range(20)] * 8)
    assert run.damaged == {}


def test_a_clock_that_runs_backwards_changes_nothing(tmp_path, monkeypatch):
    line = started(tmp_path)
    now = [2e9]
    monkeypatch.setattr(time, "time", lambda: now.append(now[-1] - 3600) or now[-1])
    for step in range(3):
        send(line, rollouts(), step)
    line.close()
    run = open_run(tmp_path)
    assert [r.step for r in run.rollouts()] == [n for n in range(3) for _ in range(4)]


def test_hosts_that_give_every_rollout_one_index_or_another_rank_lose_none(tmp_path):
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
    assert open_run(tmp_path).drops == {"build_failed": 7}
    assert len(told(caplog, "7 rollouts of step 1 could not be built")) == 1


# --- queues ---------------------------------------------------------------------------------------------------------


class Gate:
    """A host whose rollouts take as long to build as the test likes."""

    def __init__(self):
        self.open = threading.Event()
        self.entered = threading.Event()

    def build(self):
        self.entered.set()
        assert self.open.wait(20)
        return rollouts()


def test_a_full_queue_drops_the_newest_batch_whole_and_counts_it(tmp_path, caplog):
    gate = Gate()
    line = started(tmp_path, queue_bytes=2500)
    line.submit(batch(build=gate.build, made=rollouts(), step=1))
    for step in range(2, 6):
        line.submit(batch(rollouts(), step=step))
    gate.open.set()  # only now: had a submit waited for room, the gate would have given up and lost step 1
    assert line.drain(10)
    send(line, rollouts(), 6)
    line.close()
    run = open_run(tmp_path)
    assert [r.step for r in run.rollouts()] == [n for n in (1, 2, 6) for _ in range(4)]
    assert run.drops == {"queue_full": 12}
    assert [r.generation for r in run.rollouts()] == [n for n in (0, 1, 5) for _ in range(4)]
    assert len(told(caplog, "recording is")) == 1


def test_a_batch_larger_than_the_queue_is_still_taken_when_nothing_waits_and_the_run_still_ends(tmp_path):
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
    waiting.join(10)
    line.close()
    assert [r.step for r in open_run(tmp_path).rollouts()] == [n for n in (1, 2, 3) for _ in range(4)]
    assert open_run(tmp_path).drops == {}


def test_what_is_not_finished_when_patience_ends_is_counted_and_what_finishes_later_is_not(tmp_path, caplog):
    gate = Gate()
    line = started(tmp_path, end_seconds=0.3)
    line.submit(batch(build=gate.build, made=rollouts(4)))
    line.submit(batch(rollouts(3)))
    assert gate.entered.wait(5)
    line.close()
    assert line.counters.drops == {"not_finished_at_end": 7}
    assert len(told(caplog, "7 rollouts are not in the store")) == 1
    gate.open.set()
    until(lambda: open_run(tmp_path).attempts[0]["ended"])
    run = open_run(tmp_path)
    assert (len(run), run.drops) == (4, {"not_finished_at_end": 3})


@pytest.mark.parametrize("value", [-1, "soon", float("nan"), float("inf"), True])
def test_a_limit_for_the_end_that_is_not_a_number_of_seconds_is_refused_by_name(monkeypatch, value):
    with pytest.raises(SetupError, match="end_seconds is"):
        pipeline(end_seconds=value)
    monkeypatch.setenv("ROLLOUT_PLUGINS_END_SECONDS", str(value))
    with pytest.raises(SetupError, match="ROLLOUT_PLUGINS_END_SECONDS is"):
        pipeline()


def test_the_limit_for_the_end_is_half_a_minute_unless_somebody_says_otherwise(monkeypatch):
    assert pipeline().end_seconds == 30
    monkeypatch.setenv("ROLLOUT_PLUGINS_END_SECONDS", "7.5")
    assert pipeline().end_seconds == 7.5
    assert pipeline(end_seconds=2).end_seconds == 2


class Hangs:
    """A plugin that waits for an event."""

    def __init__(self, event):
        self.event = event

    @hookimpl
    def on_rollout(self, rollout):
        self.event.wait(60)


def test_a_plugin_that_hangs_at_the_end_does_not_take_the_store_with_it(tmp_path):
    for_good = threading.Event()

    line = started(tmp_path, Hangs(for_good), end_seconds=3)
    line.submit(batch(rollouts()))
    line.close()
    for_good.set()
    assert len(open_run(tmp_path)) == 4
    assert line.counters.drops == {}


def test_several_plugins_that_hang_at_the_end_cost_sinks_nothing_that_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.2")
    for_good, before = threading.Event(), set(threading.enumerate())

    line = started(tmp_path, *(Hangs(for_good) for _ in range(4)), Sink(), end_seconds=0.3)
    line.submit(batch(rollouts()))
    line.close()
    until(lambda: line.counters.drops == {"sink_failed:sink": 4})
    for_good.set()
    until(lambda: open_run(tmp_path).drops == {"sink_failed:sink": 4})
    assert len(open_run(tmp_path)) == 4
    until(lambda: not [one for one in {*threading.enumerate()} - before if one.name == "rollouts-hooks"])


def test_a_run_that_begins_again_waits_for_what_the_worker_still_does(tmp_path):
    gate = Gate()
    line = started(tmp_path, end_seconds=0.1)
    line.submit(batch(build=gate.build, made=rollouts(4)))
    assert gate.entered.wait(5)
    line.close()
    line.start(run_in(tmp_path), line.generation)
    line.submit(batch(rollouts(3)))
    assert not line.drain(0.2)
    gate.open.set()
    assert line.drain(10)
    line.close()
    run = open_run(tmp_path)
    assert [rollout.generation for rollout in run.rollouts()] == [0] * 4 + [1] * 3
    assert run.drops == {}


def test_what_a_resumed_attempt_loses_at_once_is_its_own(tmp_path):
    gate = Gate()
    line = started(tmp_path)
    line.submit(batch(build=gate.build))
    assert gate.entered.wait(5)
    line.start(run_in(tmp_path, attempt=2, resumed_from=1), 1)
    line.count("before_attach", 3)
    gate.open.set()
    line.close()
    assert [attempt["drops"] for attempt in open_run(tmp_path).attempts] == [{}, {"before_attach": 3}]


def test_a_sink_without_rollouts_on_its_rank_hears_of_the_runs_end_as_of_its_start(tmp_path):
    sink = Sink()
    line = pipeline(sink)
    line.start(run_in(tmp_path, rank=1, world_size=2))
    line.submit(batch(rollouts(rank=1)))
    line.close()
    assert (sink.events, sink.ids) == (["start", "end"], [])


@pytest.mark.parametrize("removed_after", [2, 3])
def test_lines_that_are_removed_in_mid_run_are_said_and_counted_then_and_sent_by_an_export(
    tmp_path, caplog, removed_after
):
    with RolloutRecorder([JsonlSink()], dir=tmp_path) as recorder:
        for step in range(3):
            if step == removed_after:
                shutil.rmtree(Path(recorder.run.dir) / "jsonl")
            recorder.record(step, [{"prompt": "p", "completion": "c"}] * 4)
            recorder.flush()
        if removed_after == 3:
            shutil.rmtree(Path(recorder.run.dir) / "jsonl")
    stored = open_run(tmp_path)
    lost = 4 * removed_after
    assert stored.drops == {"sink_failed:jsonl": lost}
    assert f"{lost} rollouts were removed from jsonl:{stored.dir}/jsonl since they were sent there" in caplog.text
    done = stored.export("jsonl")
    assert (done.sent, done.had) == (lost, 12 - lost)


def test_a_sink_that_cannot_say_what_is_gone_was_sent_everything(tmp_path, caplog):
    class Odd(Sink):
        gone = "no method"

    with RolloutRecorder([Odd()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}] * 4)
    assert open_run(tmp_path).drops == {}
    assert told(caplog, "in gone")
    assert not told(caplog, "misses rollouts")


def test_a_fault_of_a_sink_that_costs_nothing_does_not_hide_one_that_does(tmp_path, caplog):
    class Odd(Sink):
        gone = "no method"

    calls = []
    sink = Odd(lambda: calls.append(1) or (len(calls) > 1 and raises()))
    with RolloutRecorder([sink], dir=tmp_path) as recorder:
        for step in (1, 2):
            recorder.record(step, [{"prompt": "p", "completion": "c"}] * 4)
    assert open_run(tmp_path).drops == {"sink_failed:sink": 4}
    assert len(told(caplog, "in gone")) == len(told(caplog, "misses rollouts: it raised ValueError")) == 1


def test_a_sink_that_falls_behind_holds_no_more_than_so_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "LIMIT_BYTES", 10_000_000)
    gate = threading.Event()
    sink = Sink(gate.wait)
    with RolloutRecorder([sink], dir=tmp_path, sync=True) as recorder:
        for step in range(6):
            recorder.record(step, [{"prompt": "p", "completion": f"{n}" * 1_000_000} for n in range(4)])
        gate.set()
    assert len(sink.ids) == 8
    stored = open_run(tmp_path)
    assert (len(stored), stored.drops) == (24, {"sink_failed:sink": 16})


EXIT = """
import sys, threading, weakref
from pathlib import Path
from store_rig import *
owners = []
for number in range(20):
    sink = Sink(threading.Event().wait)
    line = started(Path(sys.argv[1]) / str(number), sink, end_seconds=1)
    line.submit(batch(rollouts()))
    owners.append(sink)
    weakref.finalize(sink, line.close)
"""


@pytest.mark.slow
def test_many_runs_that_hang_when_the_interpreter_exits_share_one_limit(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", EXIT, str(tmp_path)], env=env, check=True, timeout=15)
    assert [len(open_run(path)) for path in tmp_path.iterdir()] == [4] * 20


# --- sinks ----------------------------------------------------------------------------------------------------------


def raises():
    raise ValueError("the sink is broken")


def exits():
    sys.exit(3)


def cancels():
    raise GeneratorExit


def drops():
    raise Drop("not for sinks")


@pytest.mark.parametrize("act", [raises, exits, cancels, drops])
def test_a_sink_that_raises_costs_neither_the_store_nor_other_sinks(tmp_path, caplog, act):
    good, bad = Sink(name="good"), Sink(act, name="bad")
    run = record(tmp_path, *[rollouts() for _ in range(5)], plugins=(bad, good))
    assert len(run) == 20
    assert len(good.ids) == 20
    assert good.events == bad.events == ["start", "end"]
    assert run.drops == {"sink_failed:bad": 20}
    assert len(told(caplog, "'bad' misses rollouts")) == 1


def test_a_sink_that_fails_for_a_while_is_asked_again(tmp_path):
    calls = []
    sink = Sink(lambda: calls.append(1) or (len(calls) <= 4 and raises()))
    run = record(tmp_path, *[rollouts() for _ in range(6)], plugins=(sink,))
    assert len(sink.ids) == 8
    assert run.drops == {"sink_failed:sink": 16}


def test_a_sink_that_hangs_delays_nothing_and_what_it_misses_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.engine.outbox.LIMIT", 3)
    for_good = threading.Event()
    good, bad = Sink(name="good"), Sink(for_good.wait, name="bad")
    line = started(tmp_path, bad, good, end_seconds=0.5)
    for step in range(10):
        line.submit(batch(rollouts(), step=step))
        assert line.drain(10, sinks=False)
    until(lambda: len(good.ids) == 40)
    assert len(open_run(tmp_path)) == 40
    line.close()
    run = open_run(tmp_path)
    assert len(run) == 40
    assert run.drops == {"sink_failed:bad": 40}
    for_good.set()  # only now: nothing above waited until the bad sink was done


def test_a_slow_sink_gets_everything_that_its_queue_holds(tmp_path):
    slow, quick = Sink(lambda: time.sleep(0.05), name="slow"), Sink(name="quick")
    line = started(tmp_path, slow, quick)
    for step in range(8):
        line.submit(batch(rollouts(), step=step))
    assert line.drain(10)
    assert len(slow.ids) == 32
    line.close()
    assert slow.events == ["start", "end"]
    assert open_run(tmp_path).drops == {}


# --- plugins --------------------------------------------------------------------------------------------------------

HOOKS = {
    "on_run_start": lambda act: lambda self, run: act(),
    "on_tool_call": lambda act: lambda self, tool_call: act(),
    "on_rollout": lambda act: lambda self, rollout: act(),
    "select_rollouts": lambda act: lambda self, rollouts: act(),
    "format_trace": lambda act: lambda self, rollout: act(),
    "rollout_metrics": lambda act: lambda self, rollouts: act(),
    "on_run_end": lambda act: lambda self, run: act(),
}


def plugin_with(hook, act):
    """A plugin with one hook that does this, and nothing else."""
    function = HOOKS[hook](act)
    function.__name__ = hook
    return type("Bad", (), {"name": "bad", hook: hookimpl(function)})()


class Good:
    """Notes what it sees and changes a little, to show that it still runs."""

    name = "good"

    def __init__(self):
        self.seen = []

    @hookimpl
    def on_run_start(self):
        self.seen.append("start")

    @hookimpl
    def on_rollout(self, rollout):
        return replace(rollout, extra={"good": True})

    @hookimpl
    def rollout_metrics(self, rollouts):
        return {"count": len(rollouts)}

    @hookimpl
    def on_run_end(self):
        self.seen.append("end")


class Cancelled(BaseException):
    """As asyncio's, and what pytest.fail raises."""


class Unshowable(Exception):
    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __repr__


def says(error):
    def act():
        raise error

    return act


class Nonsense:
    """No answer to any hook, whoever looks at it how."""

    def __repr__(self):
        raise RuntimeError("no")

    __eq__ = __len__ = __iter__ = __bool__ = __float__ = __str__ = __repr__
    __hash__ = None


ACTS = {
    "raises": raises,
    "exits": exits,
    "cancels": says(Cancelled()),
    "interrupts": says(KeyboardInterrupt()),
    "unshowable": says(Unshowable()),
    "a number": lambda: 5,
    "a text": lambda: "kept",
    "an object": Nonsense,
    "a class": lambda: Rollout,
    "a list of nothing": lambda: [None],
    "odd numbers": lambda: {"a": Nonsense(), 1: "x"},
    "somebody else": lambda: Rollout(id="other"),
    "others": lambda: [Rollout(id="other")],
}
FINE = {("on_run_start", "return"), ("on_run_end", "return")}


@pytest.mark.parametrize("act", sorted(ACTS))
@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_a_plugin_that_misbehaves_costs_only_itself_and_goes_after_three_in_a_row(tmp_path, caplog, hook, act):
    good, sink = Good(), Sink()
    call = ToolCall(name="f", arguments={})
    line = started(tmp_path, plugin_with(hook, ACTS[act]), good, sink)
    for step in range(3):
        send(line, rollouts(4, tool_calls=(call,)), step)
    metrics = line.pop_metrics("train")
    line.close()
    run = open_run(tmp_path)
    assert len(run) == 12
    assert len(sink.ids) == 12
    assert all(r.extra == {"good": True} and r.tool_calls == (call,) for r in run.rollouts())
    assert metrics["count"] == 4
    assert good.seen == ["start", "end"]
    assert not [reason for reason in run.drops if reason != "unserialisable_field"]
    asked_often = hook not in {"on_run_start", "on_run_end"}
    is_nonsense = act not in {"raises", "exits", "cancels", "interrupts", "unshowable"}
    if asked_often and not (hook == "rollout_metrics" and act == "odd numbers"):
        assert line.dispatcher.removed.keys() == {"bad"}
        assert line.counters.errors["bad"] == 3
        assert len(told(caplog, f"'bad' failed in {hook}")) == 1
        assert len(told(caplog, "'bad' is off for the rest of the run")) == 1
    else:
        assert bool(line.counters.errors["bad"]) == (asked_often or not is_nonsense)


@pytest.mark.parametrize("act", ["raises", "a number"])
def test_strict_raises_what_a_plugin_did_and_stores_all_the_same(tmp_path, act):
    line = started(tmp_path, plugin_with("on_rollout", ACTS[act]), strict=True)
    line.submit(batch(rollouts()))
    line.drain(10)
    with pytest.raises((ValueError, TypeError)):
        line.raise_strict()
    line.raise_strict()
    line.close()
    assert len(open_run(tmp_path)) == 4


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_a_plugin_that_hangs_is_taken_out_and_nothing_is_lost_or_done_twice(tmp_path, caplog, monkeypatch, hook):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.2")
    let_go = threading.Event()
    seen = []

    class Counts(Good):
        @hookimpl
        def select_rollouts(self, rollouts):
            seen.append(len(rollouts))

        @hookimpl
        def rollout_metrics(self, rollouts):
            seen.append(-len(rollouts))
            return {"count": len(rollouts)}

    good, sink = Counts(), Sink()
    line = started(tmp_path, good, plugin_with(hook, lambda: let_go.wait(20) and None), sink)
    for step in range(3):
        send(line, rollouts(4, tool_calls=(ToolCall(name="f", arguments={}),)), step)
        if step == 1:
            let_go.set()  # it comes back when nobody waits for it anymore
    line.close()
    run = open_run(tmp_path)
    assert [r.index for r in run.rollouts()] == [0, 1, 2, 3] * 3
    assert all(r.extra == {"good": True} for r in run.rollouts())
    assert sorted(sink.ids) == sorted(r.id for r in run.rollouts())
    assert good.seen == ["start", "end"]
    if hook not in {"select_rollouts", "rollout_metrics"}:
        assert sorted(seen) == [-4, -4, -4, 4, 4, 4]
    if hook != "on_run_end":  # by then it was let go
        assert line.dispatcher.removed["bad"].startswith(f"did not return from {hook} within 0.2 s")
        assert len(told(caplog, "'bad' is off for the rest of the run")) == 1
    assert run.drops == {}


def test_many_plugins_that_hang_one_after_the_other_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.1")

    class Naps:
        def __init__(self, number):
            self.name = f"nap{number}"

        @hookimpl
        def on_rollout(self, rollout):
            time.sleep(0.1 if rollout.index < 3 else 0.3)  # now just in time, now just too late

    run = record(tmp_path, *[rollouts() for _ in range(2)], plugins=[Naps(n) for n in range(4)])
    assert [r.index for r in run.rollouts()] == [0, 1, 2, 3] * 2


def test_a_limit_for_hanging_that_is_no_number_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "soon")
    with pytest.raises(SetupError, match="ROLLOUT_PLUGINS_HANG_SECONDS is 'soon'; give a number of seconds"):
        pipeline()


def test_a_plain_dataclass_is_a_plugin_like_any_other(tmp_path):
    @dataclass
    class Judge:
        score: float

        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, extra={"score": self.score})

    assert [r.extra for r in record(tmp_path, rollouts(1), plugins=(Judge(0.5),)).rollouts()] == [{"score": 0.5}]


STRANGE = {
    "marks": None,
    "index": "x",
    "rank": None,
    "extra": Nonsense(),
    "completion": None,
    "tool_calls": 5,
    "images": None,
    "columns": [1],
    "rewards": None,
}


@pytest.mark.parametrize("field", sorted(STRANGE))
def test_a_plugin_that_puts_the_wrong_kind_into_a_field_is_refused_by_name(tmp_path, caplog, field):
    class Strange:
        name = "strange"

        @hookimpl
        def on_rollout(self, rollout):
            return replace(rollout, **{field: STRANGE[field]})

    sink = Sink()
    run = record(tmp_path, rollouts(2), plugins=(Strange(), sink))
    assert len(sink.ids) == len(run) == 2
    assert next(run.rollouts()).completion == ({"role": "assistant", "content": "hi"},)
    assert f"returned a rollout whose {field} is of type" in caplog.text


def test_what_a_host_made_strange_reaches_plugins_sinks_and_store_as_the_contract_has_it(tmp_path):
    good, sink = Good(), Sink()
    strange = replace(rollouts(1)[0], prompt="just text", split=7, error=9, **STRANGE)
    run = record(tmp_path, *[[strange, rollouts(2)[1]] for _ in range(4)], plugins=(good, sink))
    assert len(sink.ids) == len(run) == 8
    for rollout in list(run.rollouts())[::2]:
        assert {f"lost:{name}" for name in STRANGE if name not in {"extra", "rank"}} <= set(rollout.marks)
        assert rollout.prompt == ("just text",)
        assert rollout.completion == rollout.tool_calls == rollout.images == ()
    assert not run.damaged
    assert run.drops["unserialisable_field"] >= 4 * 7


def test_dropped_rollouts_are_counted_by_plugin_and_skipped_ones_stored_with_the_reason(tmp_path):
    class Picky:
        name = "picky"
        skip_reasons = None

        @hookimpl
        def on_tool_call(self, tool_call):
            if tool_call.name == "secret":
                raise Drop("secret")

        @hookimpl
        def on_rollout(self, rollout):
            if rollout.index == 0:
                raise Drop("boring")

        @hookimpl
        def select_rollouts(self, rollouts):
            self.skip_reasons = {rollouts[0].id: "too short"}
            return [replace(rollouts[2], marks={"picky": "best"})]

    sink = Sink()
    calls = tuple(ToolCall(name=name, arguments={}) for name in ("open", "secret"))
    run = record(tmp_path, rollouts(4, tool_calls=calls), plugins=(Picky(), sink))
    marks = [r.marks for r in run.rollouts()]
    assert marks == [
        {"sinks": "skipped by picky: too short"},
        {"sinks": "skipped by picky: not selected"},
        {"picky": "best"},
    ]
    assert sink.ids == [list(run.rollouts())[2].id]
    assert run.drops == {"tool_calls_dropped_by:picky": 4, "dropped_by:picky": 1}
    assert run.skipped == {"picky": 2}
    assert [c.name for c in next(run.rollouts()).tool_calls] == ["open"]


# --- threads, processes, ends ---------------------------------------------------------------------------------------


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


def test_a_pipeline_that_the_garbage_collector_closes_on_its_own_thread_does_not_wait_for_itself(tmp_path):
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
    end = time.monotonic() + 10
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
        [sys.executable, "-c", END + code, str(tmp_path)],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == status, done.stderr.decode()
    if least:
        run = open_run(tmp_path)
        assert len(run) >= least
        assert run.damaged == {}
        assert {path.suffix for path in (tmp_path / "r1" / "data").glob("*/*")} == {suffix}


def test_threads_end_when_the_run_does(tmp_path):
    before = set(threading.enumerate())
    for number in range(3):
        record(tmp_path / str(number), rollouts(1), plugins=(Sink(),))
    until(lambda: not {t for t in threading.enumerate() if t.name.startswith("rollouts-")} - before)


def test_metrics_are_averaged_and_taken_once(tmp_path):
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
