"""What a trainer logs is stored by step, and is there as SQL, figures and columns."""

import json
import math

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from loops import recorder_in, row
from rig import RLOO, dataset, make
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, RolloutRecorder, hookimpl, open_run, runs
from rollout_plugins.cli.main import main
from rollout_plugins.errors import DamageWarning


def logged(run, query="select * exclude (run_id, attempt, time) from steps"):
    return run.sql(query).to_pylist()


@pytest.mark.parametrize("cls", [None, RLOO])
def test_everything_that_the_trainer_logs_is_in_the_steps_table(tmp_path, cls):
    trainer = make(
        tmp_path, ["4", "five"], **({"cls": cls} if cls else {}), max_steps=3, eval_rows=dataset(2),
        eval_strategy="steps", eval_steps=2, callbacks=[RolloutPluginCallback(dir=tmp_path / "runs")],
    )  # fmt: skip
    trainer.train()
    told = {}
    for entry in trainer.state.log_history:
        told.setdefault(entry["step"], {}).update(entry)
    (run,) = runs(tmp_path / "runs")
    found = {one["step"]: {name: value for name, value in one.items() if value is not None} for one in logged(run)}
    assert found == told
    assert {"loss", "grad_norm", "learning_rate", "eval_reward", "train_runtime", "step_time"} <= {
        *found[2],
        *found[3],
    }
    by_step = {one["step"]: one for one in run.stats() if one["split"] == "train"}
    assert {step: one["log/loss"] for step, one in by_step.items()} == {s: one["loss"] for s, one in told.items()}
    assert run.sql("from steps")["loss"].to_pylist() == [one["loss"] for one in told.values()]


def test_what_other_callbacks_log_is_kept_exactly_and_other_values_are_marked(tmp_path):
    values = {
        "nan": math.nan, "inf": -math.inf, "tiny": 5e-324, "flag": True, "count": 7, "half": np.float32(0.5),
        "tensor": torch.tensor(0.25), "table": object(), "text": "x", "vector": torch.ones(2), "none": None,
        "vast": 10**400, 3: 1.0, "step": 9.0, "STEP": 8.0, 'a "name"/é': 2.0,
    }  # fmt: skip

    class Logs(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            logs.update(values)

    trainer = make(tmp_path, ["4"], callbacks=[Logs(), RolloutPluginCallback(dir=tmp_path / "runs")])
    trainer.train()
    (run,) = runs(tmp_path / "runs")
    (found,) = logged(run)
    kept = {"inf": -math.inf, "tiny": 5e-324, "flag": 1.0, "count": 7.0, "half": 0.5, "tensor": 0.25, "3": 1.0}
    assert {name: found[name] for name in kept} == kept
    assert math.isnan(found["nan"])
    assert (found["step"], found["step_1"], found["STEP_2"], found['a "name"/é']) == (1, 9.0, 8.0, 2.0)
    (file,) = (run.dir / "steps" / "trainer").iterdir()
    marks = {one["name"]: one["note"] for one in pq.read_table(file).to_pylist() if one["value"] is None}
    assert marks == {"table": "object", "text": "str", "vector": "Tensor", "none": "NoneType", "vast": "int"}
    assert not {"table", "text", "vast"} & set(found)


def test_it_can_be_read_while_it_is_written_and_by_anybody(tmp_path):
    with recorder_in(tmp_path) as recorder:
        recorder.log(0, {"loss": 3.0})  # before its first batch, a recorder has no run
        recorder.record(1, [row()])
        recorder.log(1, {"loss": 2.0})
        recorder.flush()
        run = open_run(tmp_path / "runs")
        assert logged(run, "select step, loss from steps") == [{"step": 0, "loss": 3.0}, {"step": 1, "loss": 2.0}]
        recorder.log(2, {"loss": 1.0, "kl": 0.5})
        recorder.log(2, {"loss": 0.5})
        recorder.flush()
        run.refresh()
        assert logged(run)[2] == {"step": 2, "loss": 0.5, "kl": 0.5}
        (journal,) = (run.dir / "steps" / "trainer").iterdir()
        with journal.open("ab") as file:
            file.write(b"\xff\xff\xff\xff\x10")  # a write that a kill cut off
        assert len(logged(open_run(tmp_path / "runs"))) == 3
    (file,) = (run.dir / "steps" / "trainer").iterdir()
    query = f"select step, value from '{file}' where name = 'loss'"
    assert duckdb.sql(query).fetchall() == [(0, 3.0), (1, 2.0), (2, 1.0), (2, 0.5)]


def test_what_a_resumed_attempt_does_again_wins(tmp_path):
    for resumed_from, loss in ((None, 1.0), (2, 2.0)):
        with RolloutRecorder(dir=tmp_path, run_id="r", resumed_from=resumed_from) as recorder:
            for step in range(1 if resumed_from is None else 3, 5 if resumed_from is None else 4):
                recorder.record(step, [row()])
                recorder.log(step, {"loss": loss})
    run = open_run(tmp_path)
    assert logged(run, "select step, attempt, loss from steps") == [
        {"step": 1, "attempt": 1, "loss": 1.0}, {"step": 2, "attempt": 1, "loss": 1.0},
        {"step": 3, "attempt": 2, "loss": 2.0},
    ]  # fmt: skip
    assert run.sql("select count(*) as n from steps", superseded=True)["n"].to_pylist() == [4]


def test_ranks_that_log_the_same_make_one_row(tmp_path):
    recorders = [RolloutRecorder(dir=tmp_path, run_id="r", rank=rank, world_size=2) for rank in (0, 1)]
    for rank, recorder in enumerate(recorders):
        recorder.record(1, [row()])
        recorder.log(1, {"loss": float(rank)})
        recorder.close()
    run = open_run(tmp_path)
    assert logged(run) == [{"step": 1, "loss": 0.0}]
    assert len(list((run.dir / "steps" / "trainer").iterdir())) == 2


def test_a_run_without_a_log_has_an_empty_table_and_several_runs_share_one(tmp_path):
    for number in range(3):
        with RolloutRecorder(dir=tmp_path, run_id=f"r{number}") as recorder:
            recorder.record(1, [row()])
            for value in range(number):
                recorder.log(1, {"loss": float(value), f"only{number}": 1.0})
    assert open_run(tmp_path / "r0").sql("from steps").num_rows == 0
    assert open_run(tmp_path / "r0").stats()[0].keys().isdisjoint({"log/loss"})
    found = runs(tmp_path).sql("select run_id, loss, only2 from steps").to_pylist()
    assert found == [{"run_id": "r1", "loss": 0.0, "only2": None}, {"run_id": "r2", "loss": 1.0, "only2": 1.0}]


@pytest.mark.needs(part="remote")
def test_it_is_mirrored_and_read_from_there(tmp_path):
    with recorder_in(tmp_path, mirror=f"file://{tmp_path}/copy") as recorder:
        recorder.record(1, [row()])
        recorder.log(1, {"loss": 1.0})
    for place in (tmp_path / "copy", f"file://{tmp_path}/copy"):
        assert logged(open_run(place)) == [{"step": 1, "loss": 1.0}]


def test_names_pass_the_required_plugins(tmp_path):
    class Hides:
        required = True

        @hookimpl
        def on_rollout(self, rollout):
            return None

        def clean(self, value):
            if isinstance(value, list) and "breaks" in value:
                raise ValueError
            return [one.replace("secret", "***") for one in value] if isinstance(value, list) else None

    with recorder_in(tmp_path, Hides()) as recorder:
        recorder.record(1, [row()])
        for _ in range(2):
            recorder.log(1, {"loss/secret": 1.0})
            recorder.log(1, {"breaks": 1.0})
    run = open_run(tmp_path / "runs")
    assert logged(run) == [{"step": 1, "loss/***": 1.0}]
    missing = "1 value of the trainer's log not stored: a required plugin could not search their names for secrets"
    assert (run.health.drops, run.health.warnings[missing]) == ({}, 2)


def test_a_damaged_file_costs_itself_alone(tmp_path):
    with recorder_in(tmp_path) as recorder:
        recorder.record(1, [row()])
        recorder.log(1, {"loss": 1.0})
    run = open_run(tmp_path / "runs")
    (file,) = (run.dir / "steps" / "trainer").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    run = open_run(tmp_path / "runs")
    with pytest.warns(DamageWarning, match="steps/trainer"):
        assert logged(run) == []
    assert (len(run), list(run.health.damaged)) == (1, [f"steps/trainer/{file.name}"])


def test_a_wrong_name_is_answered_with_a_near_one(tmp_path, capsys):
    with recorder_in(tmp_path) as recorder:
        recorder.record(1, [row()])
        recorder.log(1, {"grad_norm": 1.0})
    assert main(["sql", str(tmp_path / "runs"), "select grad_nrm from steps"]) != 0
    assert "grad_norm" in capsys.readouterr().err


def test_stats_shows_it(tmp_path, capsys):
    with recorder_in(tmp_path) as recorder:
        for step in range(3):
            recorder.record(step, [row(rewards={"a": 1.0})])
            recorder.log(step, {"loss": 1.0 / (step + 1), "entropy": 0.5})
    assert main(["stats", str(tmp_path / "runs"), "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [one["log/loss"] for one in steps] == [1.0, 0.5, 1 / 3]
