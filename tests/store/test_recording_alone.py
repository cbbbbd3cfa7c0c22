"""Recording needs no reading: a training is recorded, and goes on, and any program reads its Parquet files.

These tests also run against a package from which `rollout_plugins.reading` is removed, and all that is built on it.
"""

import logging
from dataclasses import replace

import duckdb
import pyarrow.parquet as pq
from rig import make

from rollout_plugins import Rollout, RolloutPluginCallback, RolloutRecorder, Run
from rollout_plugins.store.write import RunWriter


def trained(folder, caplog, **options):
    trainer = make(folder, save_strategy="steps", save_steps=2, max_steps=4)
    trainer.add_callback(RolloutPluginCallback())
    with caplog.at_level(logging.INFO, "rollout_plugins"):
        trainer.train(**options)
    return trainer.truth


def rows(folder, columns="*"):
    found = duckdb.sql(f"select {columns} from '{folder}/data/train/*.parquet' order by generation, attempt, index")
    return found.fetchall()


def test_a_training_is_recorded_and_duckdb_reads_what_the_trainer_had(tmp_path, caplog, capsys):
    truth = trained(tmp_path, caplog)
    (run,) = (tmp_path / "out-rollouts").iterdir()
    said = rows(run, "prompt[1].content, completion[1].content, rewards[1].value, advantage")
    assert said == [
        (row["prompt"][0]["content"], row["completion"][0]["content"], row["rewards"][0], row["advantage"])
        for row in truth
    ]
    assert "recorded 16 rollouts, none lost" in capsys.readouterr().err


def test_a_training_that_is_resumed_goes_on_in_its_run(tmp_path, caplog):
    trained(tmp_path, caplog)
    trained(tmp_path, caplog, resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    (run,) = (tmp_path / "out-rollouts").iterdir()
    made = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4)]
    assert sorted(set(rows(run, "attempt, step"))) == made
    assert pq.read_table(run / "data").num_rows == 4 * len(made)


def test_what_a_killed_training_left_is_counted_around_what_is_damaged(tmp_path, caplog):
    def leave(split, count):
        some = [Rollout(id=f"{split}{index}", generation=3) for index in range(count)]
        writer.write(split, [replace(rollout, run_id="killed") for rollout in some])

    folder = tmp_path / "out-rollouts" / "killed"
    writer = RunWriter(Run(id="killed", dir=str(folder)))
    leave("train", 3)
    leave("eval", 2)
    (folder / "data" / "train" / "001-00000-000009.parquet").write_bytes(b"PAR1 torn")
    trained(tmp_path, caplog)
    assert f"{folder} did not end properly or is still running; its 5 rollouts are readable" in caplog.text


def test_a_loop_of_ones_own_counts_its_generations_on(tmp_path):
    said = {"prompt": "2+2?", "completion": "4", "rewards": {"right": 1.0}}
    for _ in range(2):
        with RolloutRecorder(dir=tmp_path, run_id="exp") as recorder:
            for step in range(2):
                recorder.record(step, [said])
    assert [(row[0], row[1]) for row in rows(tmp_path / "exp", "attempt, generation")] == [
        (1, 0),
        (1, 1),
        (2, 2),
        (2, 3),
    ]
