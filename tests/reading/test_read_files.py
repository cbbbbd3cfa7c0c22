"""Which files make a run: versions, attempts, ranks, reward functions, and where the run lies."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from reading import ids, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.errors import RunError
from rollout_plugins.reading.find_runs import find_runs
from rollout_plugins.reading.runs import runs
from rollout_plugins.store import write as writing


def test_folder_names_above_a_run_mean_nothing(tmp_path):
    """Hydra and others write `key=value`, which DuckDB and Arrow take for columns."""
    folder = write(tmp_path / "rank=16" / "step=2000" / "group=ablation" / "reward=x" / "id=7", steps(2))
    stored = open_run(folder)
    before = list(stored.rollouts())
    stored.annotate("judge", [{"id": "r1.1.t1.0.0", "score": 1}])
    (folder / "annotations" / "judge" / "1-2-3.parquet").write_bytes(b"PAR1")
    stored.refresh()
    assert before == steps(2)
    assert stored.columns == [*open_run(write(tmp_path / "plain", steps(2))).columns, "judge.score"]
    assert ids(stored.rollouts(where='rank = 0 and step = 1 and "group" = 1')) == ["1.2", "1.3"]
    assert stored.get("r1.1.t1.0.0").extra == {"judge.score": 1}
    assert [row["step"] for row in stored.stats()] == [1, 2]
    assert stored.table(["step", "rank"]).num_rows == 8


def test_the_files_of_a_run_are_one_table_for_any_reader(tmp_path):
    """Also when attempts have other reward functions, and none in the first batch."""
    polars, pandas, datasets = map(pytest.importorskip, ("polars", "pandas", "datasets"))
    write(tmp_path, [one(1, 0, rewards={})], reward_names=())
    write(tmp_path, [one(2, 0, rewards={"b": 2.0})], attempt=2, resumed_from=1, reward_names=("b",))
    write(tmp_path, [one(3, 0, rewards={"a": 3.0, "B": 4.0})], attempt=3, resumed_from=2, reward_names=("a", "B"))
    folder = tmp_path / "r1" / "data" / "train"
    files = [str(path) for path in open_run(tmp_path).files]
    expected = [{}, {"b": 2.0}, {"a": 3.0, "B": 4.0}]

    def named(column):
        return [{pair["name"]: pair["value"] for pair in pairs} for pairs in column]

    assert named(polars.scan_parquet(f"{folder}/*.parquet").sort("step").collect()["rewards"].to_list()) == expected
    assert named(pandas.read_parquet(folder).sort_values("step")["rewards"]) == expected
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    assert named(loaded.sort("step")["rewards"]) == expected
    found = duckdb.sql(f"select rewards from '{folder}/*.parquet' order by step").fetchall()
    assert named(row[0] for row in found) == expected
    assert len({str(pq.read_schema(path)) for path in files}) == 1
    stored = open_run(tmp_path)
    assert [dict(rollout.rewards) for rollout in stored.rollouts()] == expected
    assert [name for name in stored.columns if name.startswith("reward/")] == ["reward/a", "reward/B", "reward/b"]


def test_rewards_that_the_first_batch_does_not_have_are_columns_too(tmp_path):
    live = writer(tmp_path, reward_names=())
    live.write("train", [one(1, 0, rewards={}, reward=None)])
    live.write("train", [one(2, n, rewards={"late": float(n)}) for n in range(3)])
    stored = open_run(tmp_path)
    assert ids(stored.rollouts(where="reward/late >= 1", order="-reward/late")) == ["2.2", "2.1"]
    live.close()
    stored.refresh()
    assert stored.table(["reward/late"])["reward/late"].to_pylist() == [None, 0.0, 1.0, 2.0]
    assert [row["reward/late"] for row in stored.stats()] == [None, 1.0]


def test_rewards_that_differ_only_in_case_are_not_mixed_up(tmp_path):
    names = ("Length", "length", "length_1", "LENGTH", "a/b", 'q"', "nul\0")
    rewards = [{name: float(10 * place + n) for place, name in enumerate(names)} for n in range(3)]
    stored = open_run(
        write(tmp_path, [one(1, n, rewards=given) for n, given in enumerate(rewards)], reward_names=names)
    )
    columns = [f"reward/{name}" for name in names]
    assert [name for name in stored.columns if name.startswith("reward/")] == columns
    for place, column in enumerate(columns):
        assert stored.table([column])[column].to_pylist() == [10.0 * place + n for n in range(3)]
        assert ids(stored.rollouts(order=f"-{column}", limit=1)) == ["1.2"]
        assert stored.stats()[0][column] == 10.0 * place + 1
    for place, column in enumerate(columns[:5]):
        assert ids(stored.rollouts(where=f"{column} = {10 * place + 1}")) == ["1.1"]
        assert ids(stored.rollouts(where=f'"{column}" = {10 * place + 1}')) == ["1.1"]
        assert stored.sql(f'select "{column}" from rollouts order by 1 limit 1').to_pylist() == [
            {column: 10.0 * place}
        ]


def test_a_run_of_the_first_version_of_the_files_is_read(tmp_path):
    """Two attempts with other reward functions, a column for each in the files; the second was killed."""
    folder = shutil.copytree(Path(__file__).parent / "version_1", tmp_path / "r1")
    stored = open_run(folder)
    expected = [{"correct": 1.0, "Correct": -1.0}] * 2 + [{"style": 5.0}, {"style": 6.0}]
    assert [dict(rollout.rewards) for rollout in stored.rollouts()] == expected
    assert ids(stored.rollouts(where="reward/Correct < 0")) == ["1.0", "1.1"]
    assert stored.table(["reward/correct", "reward/style"]).to_pylist()[1:3] == [
        {"reward/correct": 1.0, "reward/style": None}, {"reward/correct": None, "reward/style": 5.0}
    ]  # fmt: skip
    assert (stored.count(superseded=True), stored.health.damaged) == (6, {})
    write(tmp_path, [one(3, 0, attempt=3, rewards={"new": 7.0})], attempt=3, resumed_from=2, reward_names=("new",))
    stored.refresh()
    assert [row["reward/new"] for row in stored.stats()] == [None, None, 7.0]
    found = stored.sql('select "reward/Correct" as was, "reward/new" as now from rollouts order by step, index')
    assert list(zip(*found.to_pydict().values(), strict=True))[:1] == [(-1.0, None)]
    assert found["now"].to_pylist()[-1] == 7.0


def test_files_of_both_versions_in_one_run_are_read_by_others_as_the_documentation_says(tmp_path):
    polars = pytest.importorskip("polars")
    folder = shutil.copytree(Path(__file__).parent / "version_1", tmp_path / "r1")
    write(tmp_path, [one(3, 0, attempt=3, rewards={"new": 7.0})], attempt=3, resumed_from=2, reward_names=("new",))
    files, stored = f"{folder}/data/*/*.parquet", open_run(folder)
    written = [row["rewards"] for path in stored.files for row in pq.read_table(path).to_pylist()]
    assert [{"name": "new", "value": 7.0}] in written
    assert {"name": "correct", "value": 1.0} in written[0]
    found = duckdb.sql(f"select rewards from read_parquet('{files}', union_by_name = true)").fetchall()
    assert [row[0] for row in found] == written
    scanned = polars.scan_parquet(files, missing_columns="insert", extra_columns="ignore").collect()
    assert scanned["rewards"].to_list() == written
    assert writing.write_parquet(tmp_path / "one.parquet", stored.batches()) == len(stored)
    exported = pq.read_table(tmp_path / "one.parquet").to_pylist()
    assert [row["reward/new"] for row in exported if row["reward/new"] is not None] == [7.0]
    assert (stored.export("jsonl").sent, stored.health.damaged) == (len(stored), {})


def test_files_that_are_not_parts_are_ignored(tmp_path):
    folder = write(tmp_path, steps(1))
    for name in ("notes.txt", ".001-00000-000000.parquet.12.tmp", "a-b-c.parquet", "1-2.parquet"):
        (folder / "data" / "train" / name).write_text("x")
    stored = open_run(folder)
    assert (len(stored), stored.health.damaged) == (4, {})


def test_a_newer_schema_is_one_sentence(tmp_path):
    folder = write(tmp_path, steps(1))
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "schema": 99}))
    with pytest.raises(RunError, match=r"schema 99; this version reads up to 2: pip install -U rollout-plugins"):
        open_run(folder)


def test_what_a_resumed_attempt_did_again_is_left_out_unless_asked_for(tmp_path):
    write(tmp_path, steps(4, size=2))
    write(tmp_path, [one(step, n, attempt=2) for step in (3, 4, 5) for n in range(2)], attempt=2, resumed_from=2)
    stored = open_run(tmp_path)
    assert [(r.attempt, r.step) for r in stored.rollouts(where="index = 0")] == [
        (1, 1),
        (1, 2),
        (2, 3),
        (2, 4),
        (2, 5),
    ]
    assert (len(stored), stored.count(superseded=True)) == (10, 14)
    assert stored.sql("select count(*) as n from rollouts").to_pylist() == [{"n": 10}]
    assert stored.sql("select count(*) as n from rollouts", superseded=True).to_pylist() == [{"n": 14}]
    assert sum(row["rollouts"] for row in stored.stats()) == 10
    assert stored.get("r1.1.t3.0.0").attempt == 1
    assert len(stored.siblings("r1.1.t3.0.0")) == 2


def test_a_resumed_attempt_hides_nothing_before_it_did_a_step_again(tmp_path):
    write(tmp_path, steps(4, size=1))
    write(tmp_path, [], attempt=2, resumed_from=2)
    assert [r.step for r in open_run(tmp_path).rollouts()] == [1, 2, 3, 4]
    write(tmp_path, [one(2, 0, attempt=3, split="eval", id="e")], attempt=3, resumed_from=2)
    assert [r.step for r in open_run(tmp_path).rollouts()] == [1, 2, 2, 3, 4]
    write(tmp_path, [one(3, 0, attempt=4)], attempt=4, resumed_from=2)
    assert [(r.attempt, r.step) for r in open_run(tmp_path).rollouts()] == [(1, 1), (1, 2), (3, 2), (4, 3)]


def test_ranks_merge_by_lying_in_one_folder(tmp_path):
    for rank in (0, 1):
        made = [one(step, 2 * rank + n, rank=rank) for step in (1, 2) for n in range(2)]
        write(tmp_path / f"node{rank}", made, rank=rank, world_size=2)
    shutil.copytree(tmp_path / "node1" / "r1", tmp_path / "node0" / "r1", dirs_exist_ok=True)
    stored = open_run(tmp_path / "node0")
    assert ids(stored.rollouts()) == [f"{step}.{index}" for step in (1, 2) for index in range(4)]
    assert {a["rank"] for a in stored.attempts} == {0, 1}
    assert ids(stored.rollouts(rank=1, step=1)) == ["1.2", "1.3"]


def test_a_rank_alone_is_a_run_too(tmp_path):
    write(tmp_path, [one(1, 0, rank=3)], rank=3, world_size=4)
    stored = open_run(tmp_path)
    assert (stored.info.rank, len(stored)) == (3, 1)


def test_data_without_any_run_file_is_a_run(tmp_path):
    folder = write(tmp_path, steps(1))
    (folder / "run.json").unlink()
    assert open_run(tmp_path).info.id == "r1"
    assert len(open_run(folder)) == 4


def test_files_of_other_reward_functions_read_as_one_run(tmp_path):
    write(tmp_path, [one(1, 0, rewards={"correct": 1.0})], reward_names=("correct",))
    write(tmp_path, [one(2, 0, attempt=2, rewards={"style": 2.0})], attempt=2, resumed_from=1, reward_names=("style",))
    stored = open_run(tmp_path)
    assert [r.rewards for r in stored.rollouts()] == [{"correct": 1.0}, {"style": 2.0}]
    assert ids(stored.rollouts(where="reward/style > 1")) == ["2.0"]
    assert stored.table(["reward/correct", "reward/style"]).to_pylist() == [
        {"reward/correct": 1.0, "reward/style": None},
        {"reward/correct": None, "reward/style": 2.0},
    ]


def test_several_runs_are_found_and_asked_as_one(tmp_path):
    write(tmp_path / "a" / "rollouts", steps(1, run="one"), run="one")
    write(tmp_path / "b" / "rollouts", steps(2, run="two"), run="two", reward_names=("other",))
    both = runs(tmp_path)
    assert [run.info.id for run in both] == ["one", "two"]
    query = "select run_id, count(*) as n from rollouts group by all order by run_id"
    assert both.sql(query).to_pylist() == [{"run_id": "one", "n": 4}, {"run_id": "two", "n": 8}]
    assert [len(run) for run in runs(tmp_path / "a")] == [4]
    assert len(runs(tmp_path / "b" / "rollouts" / "two")) == 1
    assert "one" in both._repr_html_()


def test_open_run_takes_the_newest_run_in_a_folder(tmp_path):
    older, newer = write(tmp_path / "rollouts", steps(1), run="x"), write(tmp_path / "rollouts", steps(2), run="a")
    os.utime(older / "run.json", (1, 1))
    assert open_run(tmp_path).dir == newer
    assert find_runs(tmp_path / "rollouts") == [older, newer]
    assert open_run(older).info.id == "x"


def test_the_newest_run_is_the_one_that_began_last(tmp_path):
    """Whichever wrote last, and whenever its folder was copied."""
    first = writer(tmp_path, "z")
    first.write("train", steps(1))
    first.write_run()
    newer = write(tmp_path, steps(1), run="a")
    first.close()
    os.utime(newer / "run.json", (1, 1))
    assert [path.name for path in find_runs(tmp_path)] == ["z", "a"]
    assert open_run(tmp_path).dir == newer
    assert [run.dir.name for run in runs(tmp_path)] == ["z", "a"]
    write(tmp_path, [one(2, 0, attempt=2)], run="z", attempt=2, resumed_from=1)
    os.utime(tmp_path / "z" / "run.json", (1, 1))
    assert open_run(tmp_path).dir.name == "z"


def test_a_path_with_what_duckdb_takes_for_a_pattern(tmp_path):
    folder = tmp_path / "o[1]*?{x}'\""
    stored = open_run(write(folder, steps(1)))
    stored.annotate("judge", [{"id": "r1.1.t1.0.0", "score": 1}])
    assert stored.get("r1.1.t1.0.0").extra["judge.score"] == 1
    assert len(stored) == 4


@pytest.mark.parametrize("name", ["", "file.txt", "empty"])
def test_a_path_that_is_not_a_run_is_one_sentence(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    path = tmp_path / (name or "missing")
    for opening in (open_run, runs):
        with pytest.raises(RunError, match=r"does not exist; give a run's folder|no run found in or below"):
            opening(path)
