"""An export whose sink raises, hangs, or answers wrongly ends with an error that says so."""

import re
import subprocess
import sys
import threading

import pytest
from exported import Least

from rollout_plugins import RolloutRecorder, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.engine import outbox
from rollout_plugins.engine.outbox import Outbox
from rollout_plugins.engine.sent_ledger import Ledger
from rollout_plugins.errors import RunError
from rollout_plugins.reading.export import export
from rollout_plugins.testing import make_rollout, run_plugins


class Foreign:
    """Returns the ids that its own database gave, and that of one trace."""

    target = "foreign:place"

    def __init__(self):
        self.got = []

    @hookimpl
    def export_traces(self, traces):
        self.got += [trace.rollout_id for trace in traces]
        return [traces[0].rollout_id, "row 1", "row 2"]


def test_an_export_ends_with_an_error_when_its_sink_returns_other_ids(run):
    sink = Foreign()
    with pytest.raises(RunError, match=r"'foreign'.*returned 'row \d', which is not the id of a rollout it was given"):
        export(run, sink)
    assert sink.got == [r.id for r in run.rollouts()][:4]
    with pytest.raises(RunError):
        export(run, sink)
    assert sink.got[4:] == sink.got[1:4]  # it did say that the first one arrived


def test_rollouts_of_a_sink_that_returns_other_ids_are_counted_while_training(tmp_path, caplog):
    with RolloutRecorder([Foreign()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}] * 4)
    stored = open_run(tmp_path)
    assert (stored.health.drops, stored.health.unsent) == ({}, {"foreign": 3})
    assert stored.attempts[0]["plugin_errors"] == {"foreign": 1}
    assert "returns the rollout_id of each trace that arrived, or None for all" in caplog.text


class Counts(Least):
    @hookimpl
    def export_traces(self, traces):
        super().export_traces(traces)
        return len(traces)


def test_a_sink_that_returns_something_else_is_told_so_and_has_what_it_was_given(tmp_path, caplog):
    with RolloutRecorder([Counts()], dir=tmp_path) as recorder:
        recorder.record(1, [{"prompt": "p", "completion": "c"}] * 4)
        recorder.record(2, [{"prompt": "p", "completion": "c"}])
    stored = open_run(tmp_path)
    assert (stored.health.drops, stored.health.plugin_errors) == ({}, {"counts": 2})
    assert caplog.text.count("sink 'counts': export_traces returned int, expected a list of ids or None") == 1
    with pytest.raises(TypeError, match="'counts': export_traces returned int"):
        run_plugins([Counts()], [make_rollout()])
    with pytest.raises(RunError, match="'foreign': it returned 'row"):
        run_plugins([Foreign()], [make_rollout()])


class Breaks(Least):
    @hookimpl
    def export_traces(self, traces, step):
        if step.generation == 1:
            raise ValueError("broken")
        super().export_traces(traces)


def test_an_export_ends_with_what_its_sink_raised_and_says_what_is_not_sent(run, caplog):
    with pytest.raises(ValueError, match="broken"):
        export(run, Breaks())
    assert re.search(
        r"sink 'breaks' raised ValueError\('broken'\) at test_export_ends.py:\d+ after 4 rollouts were sent; export",
        caplog.text,
    )


def test_the_command_ends_with_an_error_when_its_sink_raises(run, install, capsys):
    code = "from rollout_plugins import hookimpl\n@hookimpl\ndef export_traces(traces): raise ValueError('broken')"
    install("x-exports", {"breaks": "x_exports"}, {"x_exports": code})
    assert main(["export", str(run.dir), "--to", "breaks"]) == 1
    assert "breaks raised ValueError('broken') at x_exports.py:3" in capsys.readouterr().err


def test_an_export_ends_with_an_error_when_its_sink_hangs(run, monkeypatch):
    class Hangs(Least):
        go_on = threading.Event()

        @hookimpl
        def export_traces(self, traces, step):
            if step.generation == 1:
                self.go_on.wait(600)
            super().export_traces(traces)

    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.3")
    with pytest.raises(RunError, match=r"sink 'hangs' did not return within 0.3 s \(ROLLOUT_PLUGINS_HANG_SECONDS"):
        export(run, Hangs())
    Hangs.go_on.set()


def test_a_sink_whose_thread_still_lets_go_of_a_file_does_not_hang(run, monkeypatch):
    leaves, let_go = threading.Event(), threading.Event()
    close = Outbox.close

    class Slow(Least):
        target = "slow:place"

    def leave(self):
        leaves.set()
        let_go.wait(300)

    def closed(self, until):
        close(self, until)
        assert leaves.wait(300)

    monkeypatch.setattr(outbox, "RELEASE_SECONDS", 0.01)
    monkeypatch.setattr(Ledger, "leave", leave)
    monkeypatch.setattr(Outbox, "close", closed)
    sink = Slow()
    assert export(run, sink).sent == len(sink.ids) == len(run)
    let_go.set()


def test_an_export_whose_sink_cannot_finish_ends_with_an_error(run):
    class Unfinished(Least):
        @hookimpl
        def on_run_end(self):
            raise ConnectionError("not uploaded")

    with pytest.raises(ConnectionError, match="not uploaded"):
        export(run, Unfinished())


def test_lines_for_a_reader_that_has_seen_enough_end_quietly(run):
    command = [sys.executable, "-m", "rollout_plugins.cli.main", "export", str(run.dir), "--to", "jsonl", "-o", "-"]
    lines = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines.stdout.close()
    assert lines.stderr.read() == b""
    assert lines.wait() == 0
