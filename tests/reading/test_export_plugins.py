"""Installed sinks and plugins take part in an export, required ones above all."""

from dataclasses import replace

import pytest
from exported import Least, ids, rollout

from rollout_plugins import Drop, Run, Trace, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import SetupError
from rollout_plugins.reading.export import export
from rollout_plugins.store.write import RunWriter

LINES = """
    from rollout_plugins import hookimpl

    class Lines:
        def __init__(self, path=None):
            self.path = path or "lines.txt"

        @hookimpl
        def export_traces(self, traces):
            with open(self.path, "a") as file:
                file.writelines(f"{trace.rollout_id}\\n" for trace in traces)
"""


def test_an_installed_sink_is_exported_to_by_name(run, tmp_path, install, capsys):
    install("x-exports", {"lines": "x_exports:Lines"}, {"x_exports": LINES})
    assert run.export("lines", options={"path": str(tmp_path / "a.txt")}).sent == 12
    assert main(["export", str(run.dir), "--to", "lines", "-o", str(tmp_path / "b.txt")]) == 0
    assert "12 rollouts given to Lines, which does not say what it took\n" in capsys.readouterr().out
    assert sorted((tmp_path / "a.txt").read_text().split()) == ids(run)
    assert sorted((tmp_path / "b.txt").read_text().split()) == ids(run)
    assert main(["export", str(run.dir), "--to", "lines", "--project", "x"]) == 1
    assert "--project is not for lines; it takes --out" in capsys.readouterr().err


def test_an_installed_plugin_that_is_not_a_sink_is_refused(run, install):
    code = "from rollout_plugins import hookimpl\n@hookimpl\ndef on_rollout(rollout): ..."
    install("x-exports", {"mine": "x_exports"}, {"x_exports": code})
    with pytest.raises(SetupError, match="'mine' is not a sink: it does not implement export_traces"):
        run.export("mine")


def test_the_format_of_an_installed_plugin_is_that_of_an_export_too(run, install):
    code = """
        from rollout_plugins import Trace, hookimpl

        @hookimpl
        def format_trace(rollout):
            return Trace(rollout_id=rollout.id, messages=({"role": "user", "content": "short"},))
    """
    install("x-exports", {"short": "x_exports"}, {"x_exports": code})
    sink = Least()
    export(run, sink)
    assert {trace.messages[0]["content"] for trace in sink.traces} == {"short"}


class Everything:
    """Would change what is recorded; was told nothing of it."""

    name = "everything"

    def __init__(self):
        self.called = []

    @hookimpl
    def on_tool_call(self):
        self.called.append("on_tool_call")

    @hookimpl
    def on_rollout(self):
        self.called.append("on_rollout")
        raise Drop("no")

    @hookimpl
    def select_rollouts(self):
        self.called.append("select_rollouts")
        return []

    @hookimpl
    def rollout_metrics(self):
        self.called.append("rollout_metrics")


def test_what_was_recorded_is_not_changed_or_left_out_once_more_by_an_export(run):
    plugin, sink = Everything(), Least()
    assert export(run, sink, plugins=[plugin]).sent == 12
    assert plugin.called == []


def test_a_plugin_of_the_export_formats_what_is_sent(run):
    class Ids:
        @hookimpl
        def on_run_start(self, run):
            self.run = run.id

        @hookimpl
        def format_trace(self, rollout):
            return Trace(rollout_id=rollout.id, messages=(), metadata={"from": self.run})

    sink = Least()
    export(run, sink, plugins=[Ids()])
    assert {trace.metadata["from"] for trace in sink.traces} == {"r1"}


SECRET = "hf_" + "aB3dE5gH7j" * 4


class Leaks:
    @hookimpl
    def format_trace(self, rollout):
        return Trace(rollout_id=rollout.id, messages=(*rollout.completion,), metadata={"key": SECRET})


@pytest.mark.needs(part="redact")
@pytest.mark.parametrize("plugins", [["redact"], ["redact", Leaks()]])
def test_nothing_leaves_in_an_export_that_a_required_plugin_has_not_seen(tmp_path, plugins):
    writer = RunWriter(Run(id="r1", dir=str(tmp_path / "r1"), settings={"key": SECRET}))
    made = rollout("train", 0, 0)
    writer.write("train", [replace(made, completion=({"role": "assistant", "content": f"it is {SECRET}"},))])
    writer.close()
    stored = open_run(tmp_path / "r1")

    class Sees(Least):
        @hookimpl
        def on_run_start(self, run):
            self.run = run

    sink = Sees()
    assert export(stored, sink, plugins=plugins).sent == 1
    assert SECRET not in f"{sink.run}{sink.traces}"
    assert "[REDACTED:huggingface]" in f"{sink.traces}"


def test_what_a_required_plugin_cannot_see_is_left_out_of_an_export(run):
    class Fails:
        required = True

        @hookimpl
        def on_rollout(self, rollout):
            if rollout.index == 0:
                raise ValueError("no")

    sink = Least()
    done = export(run, sink, plugins=[Fails()])
    assert (done.sent, done.capped) == (9, 3)
    assert len(sink.ids) == 9


def test_a_sink_that_took_nothing_was_sent_nothing(run, install, capsys):
    code = "from rollout_plugins import hookimpl\n@hookimpl\ndef export_traces(traces): return []"
    install("x-exports", {"idle": "x_exports"}, {"x_exports": code})
    assert main(["export", str(run.dir), "--to", "idle"]) == 0
    assert "0 rollouts sent to idle; the sink left out 12\n" in capsys.readouterr().out.replace("module", "idle")
