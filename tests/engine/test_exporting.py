"""Sending a stored run to a sink: all of it, once, and on from where it stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import pytest
from trackio.sqlite_storage import SQLiteStorage

from rollout_plugins import Drop, Image, Rollout, RolloutRecorder, Run, Sink, ToolCall, Trace, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.engine import export as exporting
from rollout_plugins.engine.export import export
from rollout_plugins.errors import RunError, SetupError
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.store.write import RunWriter
from rollout_plugins.testing import make_rollout, run_plugins


@pytest.fixture
def run(tmp_path):
    """Two steps of four rollouts, and one of evaluation."""
    facts = Run(id="r1", dir=str(tmp_path / "r1"), reward_names=("half",))
    writer = RunWriter(facts)
    for generation, split in enumerate(("train", "train", "eval")):
        writer.write(split, [rollout(split, generation, index) for index in range(4)])
    writer.close()
    return open_run(tmp_path / "r1")


def rollout(split, generation, index):
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": index}}}
    made = Rollout(
        id=f"r1.1.{split[0]}{generation}.0.{index}", run_id="r1", split=split, step=generation + 1, generation=generation,
        index=index, group=index // 2, group_size=2, prompt=({"role": "user", "content": "hi"},),
        completion=({"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": "f", "content": "6"}),
        tool_calls=(ToolCall(name="f", arguments={"a": index}, reply=1, result="6"),), rewards={"half": index / 2}, reward=index / 2,
    )  # fmt: skip
    return replace(made, images=(Image(hash="x", note="gone"),)) if index == 3 else made


def lines(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_everything_is_sent_once_however_often_it_is_exported(run, tmp_path):
    folder = tmp_path / "lines"
    first = export(run, JsonlSink(folder))
    again = export(run, JsonlSink(folder))
    assert (first.sent, first.had) == (12, 0)
    assert (again.sent, again.had) == (0, 12)
    assert [line["id"] for line in lines(folder)] == [r.id for r in run.rollouts()]
    elsewhere = export(run, JsonlSink(tmp_path / "other"))
    assert elsewhere.sent == 12


def test_each_step_is_sent_as_itself_where_one_rank_evaluates_alone(tmp_path):
    recorders = [RolloutRecorder(dir=tmp_path, run_id="r", rank=rank, world_size=3) for rank in range(3)]
    recorders[0].record(0, [{"prompt": "p", "completion": "c"}], split="eval")
    for step in (1, 2, 3):
        for recorder in recorders:
            recorder.record(step, [{"prompt": "p", "completion": "c"}] * 2)
    for recorder in recorders:
        recorder.close()
    sent = []

    class Notes:
        @hookimpl
        def export_traces(self, traces, step):
            sent.append((step.step, sorted((trace.metadata["step"], trace.metadata["rank"]) for trace in traces)))

    export(open_run(tmp_path), Notes())
    alone = [(step, [(step, 0)] * 2) for step in (1, 2, 3)]
    others = [(step, [(step, 1)] * 2 + [(step, 2)] * 2) for step in (1, 2, 3)]
    assert sorted(sent) == sorted([(0, [(0, 0)]), *alone, *others])


class Odd:
    """Somebody's sink, which names its target as it likes."""

    def __init__(self, target):
        self.target = target

    @hookimpl
    def export_traces(self, traces, step):
        pass


@pytest.mark.parametrize(("target", "sent"), [(5, 12), (None, 12), ("", 12), ("long" * 999, 0), ("a:\n# b\n", 0)])
def test_a_target_may_be_named_in_any_way_and_is_sent_everything_once_if_it_has_a_name(run, target, sent):
    assert export(run, Odd(target)).sent == 12
    assert export(run, Odd(target)).sent == sent


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


def ids(run):
    return sorted(rollout.id for rollout in run.rollouts())


def in_file(folder):
    return sorted(line["id"] for line in lines(folder))


def in_background(*works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def joined(threads):
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


def test_two_processes_that_export_at_once_send_each_rollout_once(run, tmp_path):
    command = [sys.executable, "-m", "rollout_plugins.cli.main", "export", str(run.dir), "--to", "jsonl", "-o"]
    both = [subprocess.Popen([*command, str(tmp_path / "lines")]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert in_file(tmp_path / "lines") == ids(run)


class Slow(JsonlSink):
    """Stops in the middle of its first generation until told to go on."""

    def __init__(self, path):
        super().__init__(path)
        self.asked, self.go_on = threading.Event(), threading.Event()

    @hookimpl
    def export_traces(self, traces, step):
        self.asked.set()
        self.go_on.wait(60)
        return super().export_traces(traces, step)


def test_an_export_waits_while_another_one_sends_and_then_sends_what_is_left(run, tmp_path):
    slow, folder = Slow(tmp_path / "lines"), tmp_path / "lines"
    first = in_background(lambda: export(run, slow))
    assert slow.asked.wait(60)
    second = in_background(lambda: export(run, JsonlSink(folder)))
    slow.go_on.set()
    assert joined([*first, *second])
    assert in_file(folder) == ids(run)


def test_an_export_that_waits_in_vain_names_who_is_sending(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "PATIENCE_SECONDS", 0.1)
    slow = Slow(tmp_path / "lines")
    first = in_background(lambda: export(run, slow))
    assert slow.asked.wait(60)
    with pytest.raises(RunError, match=rf"process {os.getpid()} on .* has been sending to jsonl:.* and export again"):
        export(run, JsonlSink(tmp_path / "lines"))
    slow.go_on.set()
    assert joined(first)


def test_a_sender_that_was_killed_keeps_nobody_waiting(run, tmp_path):
    code = (
        "import os, signal, sys\n"
        "from rollout_plugins import open_run, hookimpl\n"
        "from rollout_plugins.engine.export import export\n"
        "from rollout_plugins.sinks.jsonl import JsonlSink\n"
        "class Killed(JsonlSink):\n"
        "    @hookimpl\n"
        "    def export_traces(self, traces, step):\n"
        "        super().export_traces(traces, step)\n"
        "        if step.generation == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export(open_run(sys.argv[1]), Killed(sys.argv[2]))"
    )
    done = subprocess.run([sys.executable, "-c", code, run.dir, tmp_path / "lines"], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(in_file(tmp_path / "lines")) == 8
    assert export(run, JsonlSink(tmp_path / "lines")).sent == 4
    assert in_file(tmp_path / "lines") == ids(run)


@pytest.mark.needs(part="scout")
def test_what_was_removed_from_the_target_is_sent_again(run, tmp_path):
    from rollout_plugins.sinks.scout import ScoutSink

    for sink in (JsonlSink, ScoutSink):
        folder = tmp_path / sink.__name__
        assert export(run, sink(folder)).sent == 12
        assert export(run, sink(folder)).sent == 0
        shutil.rmtree(folder)
        done = export(run, sink(folder))
        assert (done.sent, done.had) == (12, 0)


def test_trackio_is_asked_what_it_has_for_it_only_queues(run):
    code = (
        "import os, signal, sys\n"
        "from rollout_plugins import open_run\n"
        "from rollout_plugins.engine.export import export\n"
        "from rollout_plugins.sinks.trackio import TrackioSink\n"
        "def kill(sent): sent == 12 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "export(open_run(sys.argv[1]), TrackioSink(project='killed', name='r1'), progress=kill)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.dir], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (noted,) = (run.dir / "exports").glob("trackio-*.txt")
    assert len(noted.read_text().splitlines()) == 13
    export(run, TrackioSink(project="killed", name="r1"))
    found = [trace["metadata"]["id"] for trace in SQLiteStorage.get_traces("killed", "r1")]
    assert sorted(found) == ids(run)


def test_a_sink_that_took_fewer_is_noted_for_those(run):
    class Two(JsonlSink):
        @hookimpl
        def export_traces(self, traces, step):
            return super().export_traces(traces[:2], step)

        def received(self):
            return None

    sink = Two(run.dir / "two")
    assert (export(run, sink).sent, export(run, sink).had) == (6, 6)
    assert in_file(run.dir / "two") == ids(run)


class Least:
    """The least that a sink can be."""

    def __init__(self):
        self.ids = []
        self.traces = []

    @hookimpl
    def export_traces(self, traces):
        self.ids += [trace.rollout_id for trace in traces]
        self.traces += traces


def test_a_sink_that_only_exports_is_enough_from_the_store(run):
    sink = Least()
    done = export(run, sink)
    assert (done.sent, done.target) == (12, "Least")
    assert sorted(sink.ids) == ids(run)


def test_a_cap_holds_for_each_generation_of_a_step(tmp_path):
    writer = RunWriter(Run(id="r1", dir=str(tmp_path / "r1")))
    for generation in range(3):
        writer.write("train", [replace(rollout("train", generation, index), step=1) for index in range(4)])
    writer.close()
    done = export(open_run(tmp_path / "r1"), JsonlSink(tmp_path / "lines"), cap=2)
    assert (done.sent, done.capped) == (6, 6)


def test_a_sink_of_its_own_for_each_rank_is_sent_each_ranks_rollouts(tmp_path):
    recorders = [RolloutRecorder(dir=tmp_path, run_id="r", rank=rank, world_size=3) for rank in range(3)]
    for recorder in recorders:
        recorder.record(1, [{"prompt": "p", "completion": "c"}] * 4)
        recorder.close()
    stored, folder = open_run(tmp_path / "r"), tmp_path / "lines"

    def found():
        return [[line["rank"] for line in lines(folder / f"rank-{rank}")] for rank in range(3)]

    capped = export(stored, JsonlSink(folder, scope="rank"), cap=8)
    assert (capped.sent, capped.had, capped.capped) == (8, 0, 4)
    done = export(stored, JsonlSink(folder, scope="rank"))
    assert (done.sent, done.had, done.capped) == (4, 8, 0)
    assert found() == [[0] * 4, [1] * 4, [2] * 4]
    assert done.target == ", ".join(f"jsonl:{folder.resolve()}/rank-{rank}" for rank in range(3))
    again = stored.export("jsonl", options={"path": str(tmp_path / "few"), "scope": "rank"}, limit=5, order="rank")
    assert (again.sent, again.capped) == (5, 0)
    assert export(stored, JsonlSink(tmp_path / "one", scope="rank"), rank=2).sent == 4


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
    assert stored.drops == {"sink_failed:foreign": 3}
    assert stored.attempts[0]["plugin_errors"] == {"foreign": 1}
    assert "returns the rollout_id of each trace that arrived, or None for all" in caplog.text


def test_filters_and_a_cap_choose_what_is_sent(run, tmp_path):
    done = export(run, JsonlSink(tmp_path / "lines"), cap=2, split="train", where="reward > 0")
    assert (done.sent, done.capped) == (4, 2)
    assert {line["split"] for line in lines(tmp_path / "lines")} == {"train"}


def test_trackio_gets_the_rest_of_what_a_training_sent(run):
    sink = TrackioSink(project="exporting", name="r1")
    assert export(run, sink, split="train").sent == 8
    done = export(run, TrackioSink(project="exporting", name="r1"))
    assert done.target == "trackio:exporting/r1"
    assert (done.sent, done.had) == (4, 8)


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


@pytest.mark.needs(part="scout")
def test_an_unknown_target_names_the_known_ones(run):
    with pytest.raises(SetupError, match="cannot export to 'mlflow'; accepted: console, jsonl, scout, trackio, wandb"):
        export(run, "mlflow")


@pytest.mark.needs(part="scout")
def test_the_command_sends_and_says_what_it_did(run, tmp_path, capsys):
    words = ["export", str(run.dir), "--to", "jsonl", "-o", str(tmp_path / "lines")]
    assert main(words) == 0
    assert "12 rollouts sent" in capsys.readouterr().out
    assert main(words) == 0
    assert "0 rollouts sent" in capsys.readouterr().out
    assert main(["export", str(run.dir), "--to", "jsonl", "-o", "-", "--limit", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["export", str(run.dir), "--to", "scout", "--project", "x"]) == 1
    assert "--project is not for scout; it takes --out" in capsys.readouterr().err


def test_a_sink_that_only_exports_is_enough_while_training():
    sink = Least()
    rollouts = [make_rollout(index=index) for index in range(3)]
    run_plugins([sink], rollouts)
    assert len(sink.ids) == 3


def test_a_sink_may_take_what_it_needs_from_the_contract(run):
    class Mine(Sink):
        target = "mine:here"

        @hookimpl
        def export_traces(self, traces):
            return None

    assert (export(run, Mine()).sent, export(run, Mine()).had) == (12, 12)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A package with plugins, as pip would install it."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def add(code, **entries):
        info = folder / "x_exports-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: x-exports\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = x_exports:{kind}" for name, kind in entries.items())
        (info / "entry_points.txt").write_text(f"[rollout_plugins]\n{lines}\n")
        (folder / "x_exports.py").write_text(f"from rollout_plugins import Trace, hookimpl\n{textwrap.dedent(code)}")

    yield add
    sys.modules.pop("x_exports", None)


LINES = """
    class Lines:
        def __init__(self, path=None):
            self.path = path or "lines.txt"

        @hookimpl
        def export_traces(self, traces):
            with open(self.path, "a") as file:
                file.writelines(f"{trace.rollout_id}\\n" for trace in traces)
"""


def test_an_installed_sink_is_exported_to_by_name(run, tmp_path, install, capsys):
    install(LINES, lines="Lines")
    assert run.export("lines", options={"path": str(tmp_path / "a.txt")}).sent == 12
    assert main(["export", str(run.dir), "--to", "lines", "-o", str(tmp_path / "b.txt")]) == 0
    assert "12 rollouts sent to Lines" in capsys.readouterr().out
    assert sorted((tmp_path / "a.txt").read_text().split()) == ids(run)
    assert sorted((tmp_path / "b.txt").read_text().split()) == ids(run)
    assert main(["export", str(run.dir), "--to", "lines", "--project", "x"]) == 1
    assert "--project is not for lines; it takes --out" in capsys.readouterr().err


def test_an_installed_plugin_that_is_not_a_sink_is_refused(run, install):
    install("class Mine:\n    @hookimpl\n    def on_rollout(self): ...", mine="Mine")
    with pytest.raises(SetupError, match="'mine' is not a sink: it does not implement export_traces"):
        run.export("mine")


def test_the_format_of_an_installed_plugin_is_that_of_an_export_too(run, install):
    install(
        """
        class Short:
            @hookimpl
            def format_trace(self, rollout):
                return Trace(rollout_id=rollout.id, messages=({"role": "user", "content": "short"},))
        """,
        short="Short",
    )
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


class Breaks(Least):
    @hookimpl
    def export_traces(self, traces, step):
        if step.generation == 1:
            raise ValueError("broken")
        super().export_traces(traces)


def test_an_export_ends_with_what_its_sink_raised_and_says_what_is_not_sent(run, caplog):
    with pytest.raises(ValueError, match="broken"):
        export(run, Breaks())
    assert (
        "sink 'breaks' raised ValueError('broken') after 4 rollouts were sent; export again for the rest"
        in caplog.text
    )


def test_the_command_ends_with_an_error_when_its_sink_raises(run, install, capsys):
    install("class Breaks:\n    @hookimpl\n    def export_traces(self): raise ValueError('broken')", breaks="Breaks")
    assert main(["export", str(run.dir), "--to", "breaks"]) == 1
    assert "breaks raised ValueError('broken')" in capsys.readouterr().err


def test_an_export_ends_with_an_error_when_its_sink_hangs(run, monkeypatch):
    class Hangs(Least):
        go_on = threading.Event()

        @hookimpl
        def export_traces(self, traces, step):
            if step.generation == 1:
                self.go_on.wait(60)
            super().export_traces(traces)

    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.3")
    with pytest.raises(RunError, match=r"sink 'hangs' did not return within 0.3 s \(ROLLOUT_PLUGINS_HANG_SECONDS"):
        export(run, Hangs())
    Hangs.go_on.set()


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
    assert lines.wait(60) == 0
