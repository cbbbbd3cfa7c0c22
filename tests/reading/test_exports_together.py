"""Exports that break off, that run at the same time, or beside a training: each rollout is sent once."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from exported import ids, in_file, lines

from rollout_plugins import hookimpl, open_run
from rollout_plugins.errors import RunError
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.reading import export as exporting
from rollout_plugins.reading.export import export
from rollout_plugins.sinks.jsonl import JsonlSink


class Fragile(JsonlSink):
    """Breaks at its second generation, once."""

    broken = False

    @hookimpl
    def export_traces(self, traces, step):
        if step.generation == 1 and not Fragile.broken:
            Fragile.broken = True
            raise ConnectionError("lost")
        super().export_traces(traces, step)


def test_an_interrupted_export_goes_on_where_it_stopped(run, tmp_path):
    folder = tmp_path / "lines"
    with pytest.raises(ConnectionError):
        export(run, Fragile(folder))
    done = export(run, Fragile(folder))
    assert (done.sent, done.had) == (8, 4)
    assert [line["id"] for line in lines(folder)] == [r.id for r in run.rollouts()]


def test_two_processes_that_export_at_once_send_each_rollout_once(run, tmp_path):
    command = [sys.executable, "-m", "rollout_plugins.cli.main", "export", str(run.dir), "--to", "jsonl", "-o"]
    both = [subprocess.Popen([*command, str(tmp_path / "lines")]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert in_file(tmp_path / "lines") == ids(run)


class Slow(JsonlSink):
    """Stops in the middle of its first generation until told to go on."""

    def __init__(self, path):
        super().__init__(path)
        self.asked, self.go_on = threading.Event(), threading.Event()

    @hookimpl
    def export_traces(self, traces, step):
        self.asked.set()
        self.go_on.wait(600)
        return super().export_traces(traces, step)


def test_an_export_waits_while_another_one_sends_and_then_sends_what_is_left(run, tmp_path):
    slow, folder = Slow(tmp_path / "lines"), tmp_path / "lines"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(export, run, slow)
        assert slow.asked.wait(600)
        second = pool.submit(export, run, JsonlSink(folder))
        slow.go_on.set()
        assert first.result(600).sent + second.result(600).sent == 12
    assert in_file(folder) == ids(run)


def test_an_export_that_waits_in_vain_names_who_is_sending(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "PATIENCE_SECONDS", 0.1)
    slow = Slow(tmp_path / "lines")
    said = rf"process {os.getpid()} on .* has been sending to jsonl:.*, then export again"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(export, run, slow)
        assert slow.asked.wait(600)
        with pytest.raises(RunError, match=said):
            export(run, JsonlSink(tmp_path / "lines"))
        slow.go_on.set()
        assert first.result(600).sent == 12


def test_a_sender_that_was_killed_keeps_nobody_waiting(run, tmp_path):
    code = (
        "import os, signal, sys\n"
        "from rollout_plugins import open_run, hookimpl\n"
        "from rollout_plugins.reading.export import export\n"
        "from rollout_plugins.sinks.jsonl import JsonlSink\n"
        "class Killed(JsonlSink):\n"
        "    @hookimpl\n"
        "    def export_traces(self, traces, step):\n"
        "        super().export_traces(traces, step)\n"
        "        if step.generation == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export(open_run(sys.argv[1]), Killed(sys.argv[2]))"
    )
    done = subprocess.run([sys.executable, "-c", code, run.dir, tmp_path / "lines"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(in_file(tmp_path / "lines")) == 8
    assert export(run, JsonlSink(tmp_path / "lines")).sent == 4
    assert in_file(tmp_path / "lines") == ids(run)


def test_what_a_live_sink_was_sent_is_not_sent_again(tmp_path):
    from rig import make

    from rollout_plugins import RolloutPluginCallback

    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback([Cap(2), JsonlSink(tmp_path / "lines")]))
    trainer.train()
    run = open_run(tmp_path / "out")
    done = export(run, JsonlSink(tmp_path / "lines"))
    assert (done.sent, done.had) == (6, 6)
    assert in_file(tmp_path / "lines") == ids(run)


def test_an_export_beside_a_training_sends_each_rollout_once(tmp_path):
    from rig import make
    from transformers import TrainerCallback

    from rollout_plugins import RolloutPluginCallback

    class Exports(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            export(open_run(tmp_path / "out"), JsonlSink(tmp_path / "lines"))

    callback = RolloutPluginCallback([Cap(2), JsonlSink(tmp_path / "lines")], sync=True)
    make(tmp_path, max_steps=4, callbacks=[callback, Exports()]).train()
    run = open_run(tmp_path / "out")
    assert len(run) == 16
    assert in_file(tmp_path / "lines") == ids(run)
