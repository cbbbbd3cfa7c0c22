"""Stored rollouts are sent to a sink once, however often and by whatever name they are exported."""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from exported import Least, ids, in_file, lines, rollout
from trackio.sqlite_storage import SQLiteStorage

from rollout_plugins import RolloutRecorder, Run, Sink, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import SetupError
from rollout_plugins.reading.export import export
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.store.write import RunWriter
from rollout_plugins.testing import make_rollout, run_plugins


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
        "from rollout_plugins.reading.export import export\n"
        "from rollout_plugins.sinks.trackio import TrackioSink\n"
        "def kill(sent): sent == 12 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "export(open_run(sys.argv[1]), TrackioSink(project='killed', name='r1'), progress=kill)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.dir], check=False)
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
