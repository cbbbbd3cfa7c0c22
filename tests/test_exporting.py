"""Sending a stored run to a sink: all of it, once, and on from where it stopped."""

import json
from dataclasses import replace

import pytest

from rollout_plugins import Image, Rollout, Run, ToolCall, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import SetupError
from rollout_plugins.exporting import export
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.store.write import RunWriter


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
    assert sorted(line["id"] for line in lines(tmp_path / "lines")) == sorted(r.id for r in run.rollouts())


def test_an_unknown_target_names_the_known_ones(run):
    with pytest.raises(SetupError, match="cannot export to 'mlflow'; accepted: parquet, trackio, wandb, jsonl, scout"):
        export(run, "mlflow")


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
