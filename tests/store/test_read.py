"""`open_run`: what was written comes back, in any order and by any condition."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from reading import called, ids, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.errors import MissingExtraError, RunError
from rollout_plugins.store import write as writing
from rollout_plugins.store.finding import find_runs
from rollout_plugins.store.read import StoredRun, runs
from rollout_plugins.testing import hostile_rollouts


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return open_run(write(tmp_path, steps(4)))


def test_everything_comes_back_in_the_order_it_was_made(tmp_path):
    made = steps(5)
    stored = open_run(write(tmp_path, made))
    assert list(stored.rollouts()) == made
    assert (len(stored), stored.steps) == (20, [1, 2, 3, 4, 5])
    assert stored.get(made[7].id) == made[7]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"step": 2}, ["2.0", "2.1", "2.2", "2.3"]),
        ({"step": "2", "limit": 1}, ["2.0"]),
        ({"step": "last", "group": 1}, ["4.2", "4.3"]),
        ({"step": range(2, 4), "group": 0}, ["2.0", "2.1", "3.0", "3.1"]),
        ({"step": "3-", "where": "index = 0"}, ["3.0", "4.0"]),
        ({"step": "..2,4", "where": "index = 0"}, ["1.0", "2.0", "4.0"]),
        ({"step": "-2,1", "where": "index = 0"}, ["1.0", "3.0"]),
        ({"step": -1, "where": "index = 0"}, ["4.0"]),
        ({"step": [1, 4], "where": "index = 3"}, ["1.3", "4.3"]),
        ({"step": []}, []),
        ({"where": "reward > 6"}, ["4.3"]),
        ({"where": "group = 1 and reward < 4"}, ["1.2"]),
        ({"where": "reward/correct >= 6"}, ["3.3", "4.2", "4.3"]),
        ({"where": '"reward/format" is not null'}, []),
        ({"search": "ANSWER 3 of step 2"}, ["2.3"]),
        ({"split": "eval"}, []),
        ({"rank": 0, "limit": 2}, ["1.0", "1.1"]),
        ({"finish": "length"}, []),
        ({"limit": 0}, []),
    ],
)
def test_filters(run, filters, found):
    assert ids(run.rollouts(**filters)) == found
    assert run.count(**filters) == len(found)


def test_a_condition_may_hold_a_question_of_its_own(run):
    assert ids(run.rollouts(where="reward = (select max(reward) from rollouts)")) == ["4.3"]
    assert ids(run.rollouts(where="id in (select id from messages where content = 'Answer 1 of step 2.')")) == ["2.1"]
    assert run.count(where="id in (select id from tool_calls)") == 0


def test_whole_numbers_of_any_kind_are_steps(run):
    numpy = pytest.importorskip("numpy")
    for step in (2, 2.0, numpy.int64(2), numpy.float32(2), "2", [numpy.int8(2)], ["2"]):
        assert run.count(step=step) == 4


def test_tools_and_errors_are_found(tmp_path):
    stored = open_run(
        write(
            tmp_path,
            [
                one(1, 0, tool_calls=(called("search", q='say "hi"'), called("price"))),
                one(1, 1, tool_calls=(called("search", "error"),)),
                one(1, 2, tool_calls=(called("price", "not_run"),)),
                one(1, 3, error="it broke"),
            ],
        )
    )
    assert ids(stored.rollouts(tool="search")) == ["1.0", "1.1"]
    assert ids(stored.rollouts(has_error=True)) == ["1.1", "1.3"]
    assert ids(stored.rollouts(has_error=False)) == ["1.0", "1.2"]
    assert ids(stored.search('SAY "HI"')) == ["1.0"]
    assert ids(stored.rollouts(where="calls > 1 or failed_calls > 0")) == ["1.0", "1.1"]


@pytest.mark.slow
def test_the_first_with_a_text_are_the_first_of_all_with_it(tmp_path):
    """Looking at a few generations at a time finds the same, wherever they are, and with other filters too."""
    says = {0: "a", 3: "b", 4: "ab", 5: "b", 11: "ab", 12: "b", 40: "ab"}

    def said(step):
        return ({"role": "assistant", "content": f"<{says.get(step, 'c')}>"},)

    made = [one(step, index, completion=said(step if not index else 99)) for step in range(41) for index in range(2)]
    stored = open_run(write(tmp_path, made))
    for text in ("<a", "b>", "<ab", "<c>", "nothing"):
        everything = ids(stored.search(text))
        for limit in (0, 1, 2, 3, 50):
            assert ids(stored.search(text, limit=limit)) == everything[:limit]
            assert stored.count(search=text, limit=limit) == min(limit, len(everything))
            assert (
                ids(stored.search(text, limit=limit, order="-step")) == ids(stored.search(text, order="-step"))[:limit]
            )
    assert ids(stored.search("b>", where="step > 4", limit=2)) == ["5.0", "11.0"]
    assert ids(stored.search("b>", step="10-20", limit=9)) == ["11.0", "12.0"]


def test_search_looks_into_prompts_reasoning_and_names_of_tools(tmp_path):
    said = ({"role": "assistant", "content": "no", "reasoning_content": "because of ZEBRAS"},)
    blocks = ({"role": "user", "content": [{"type": "text", "text": "see the yak"}]},)
    stored = open_run(
        write(tmp_path, [one(1, 0, completion=said), one(1, 1, prompt=blocks), one(1, 2, tool_calls=(called("gnu"),))])
    )
    assert [ids(stored.search(text)) for text in ("zebra", "the yak", "gnu", "100%", "'; --", "\0", "\ud800")] == [
        ["1.0"], ["1.1"], ["1.2"], [], [], [], []
    ]  # fmt: skip


def test_order_puts_missing_and_nan_last_in_both_directions(tmp_path):
    rewards = [2.0, None, math.nan, -1.0, math.inf]
    stored = open_run(write(tmp_path, [one(1, index, reward=reward) for index, reward in enumerate(rewards)]))
    assert ids(stored.rollouts(order="-reward")) == ["1.4", "1.0", "1.3", "1.2", "1.1"]
    assert ids(stored.rollouts(order="reward")) == ["1.3", "1.0", "1.4", "1.2", "1.1"]


def test_order_by_several_columns_and_by_sql(run):
    assert ids(run.rollouts(order="-step,reward", limit=2)) == ["4.0", "4.1"]
    assert ids(run.rollouts(order=["-group", "-step"], limit=2)) == ["4.2", "4.3"]
    assert ids(run.rollouts(order="abs(reward - 3.9), step", limit=1)) == ["1.3"]
    assert ids(run.rollouts(order="step desc, index desc", limit=1)) == ["4.3"]


def test_a_group_and_the_history_of_a_prompt(run):
    assert ids(run.group("r1.1.t2.0.3")) == ["2.2", "2.3"]
    assert ids(run.history(run.get("r1.1.t2.0.3"), limit=3)) == ["1.2", "1.3", "2.2"]
    assert ids(run.history("question 0", step="last")) == ["4.0", "4.1"]
    assert ids(run.history("question")) == []


def test_history_of_a_prompt_that_only_shares_a_message_with_others(tmp_path):
    system = {"role": "system", "content": "A long system prompt that everything shares."}
    made = [one(1, n, prompt=(system, {"role": "user", "content": f"q{n}"})) for n in range(3)]
    stored = open_run(write(tmp_path, made))
    assert ids(stored.history(made[1])) == ["1.1"]


def test_a_run_that_was_removed_meanwhile_is_one_sentence(run):
    assert len(run) == 16
    shutil.rmtree(run.dir)
    with pytest.raises(RunError, match=r"cannot be read: ") as caught:
        run.count(where="reward > 0")
    assert "\n" not in str(caught.value)


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
    assert (stored.count(superseded=True), stored.damaged) == (6, {})
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
    assert writing.write_parquet(tmp_path / "one.parquet", stored.tables()) == len(stored)
    exported = pq.read_table(tmp_path / "one.parquet").to_pylist()
    assert [row["reward/new"] for row in exported if row["reward/new"] is not None] == [7.0]
    assert (stored.export("jsonl").sent, stored.damaged) == (len(stored), {})


def test_files_that_are_no_parts_are_ignored(tmp_path):
    folder = write(tmp_path, steps(1))
    for name in ("notes.txt", ".001-00000-000000.parquet.12.tmp", "a-b-c.parquet", "1-2.parquet"):
        (folder / "data" / "train" / name).write_text("x")
    stored = open_run(folder)
    assert (len(stored), stored.damaged) == (4, {})


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
    assert len(stored.group("r1.1.t3.0.0")) == 2


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


def test_many_rollouts_stream_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SEAL_BYTES", 200_000)
    made = [one(step, index) for step in range(1, 31) for index in range(64)]
    stored = open_run(write(tmp_path, made))
    assert len(stored.files) > 2
    assert list(stored.rollouts()) == made
    assert list(stored.rollouts(order="-index,step")) == sorted(made, key=lambda r: (-r.index, r.step))
    first = stored.rollouts(order="-reward")
    assert next(first).reward == max(r.reward for r in made)


def test_hostile_rollouts_read_back_and_hide_nothing(tmp_path):
    made = [replace(r, id=f"h{n}", index=n, step=1, generation=1) for n, r in enumerate(hostile_rollouts())]
    stored = open_run(write(tmp_path, [*made, one(2, 0)]))
    assert len(list(stored.rollouts())) == len(made) + 1
    assert ids(stored.rollouts(step=2)) == ["2.0"]
    assert stored.damaged == {}
    stored.stats()
    stored._repr_html_()
    assert len(list(stored.search("e"))) >= 1


def test_a_table_has_the_columns_asked_for_with_their_types(run):
    table = run.table(["reward", "id", "tool_calls"], step=2)
    assert table.column_names == ["reward", "id", "tool_calls"]
    assert table["reward"].to_pylist() == [2.0, 3.0, 4.0, 5.0]
    stored = pq.read_schema(run.files[0])
    assert all(table.schema.field(name).type == stored.field(name).type for name in table.column_names)
    assert run.table().num_rows == 16
    assert run.table(["id"], limit=0).to_pydict() == {"id": []}
    with pytest.raises(RunError, match=r"no column is named 'nope'; the columns are id, run_id"):
        run.table(["nope"])


def test_pandas_polars_and_datasets(run):
    columns = ["id", "step", "reward"]
    assert run.to_pandas(columns, step=1)["reward"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert run.to_polars(columns, step=1)["reward"].to_list() == [1.0, 2.0, 3.0, 4.0]
    assert run.to_dataset(columns, step=1)["reward"][:] == [1.0, 2.0, 3.0, 4.0]
    assert run.to_dataset()[0]["completion"][0]["content"] == "Answer 0 of step 1."


@pytest.mark.parametrize("name", ["pandas", "polars", "datasets"])
def test_a_missing_library_is_named_by_its_own_package(run, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"{name} is not installed: pip install {name}$"):
        getattr(run, f"to_{name.removesuffix('s') if name == 'datasets' else name}")()


def test_stats_count_what_matters(tmp_path):
    made = [
        one(1, 0, reward=0.0, finish="length", completion_tokens=10),
        one(1, 1, reward=1.0, completion_tokens=30, tool_calls=(called("a"), called("a", "error"))),
        one(1, 2, reward=None, error="broke"),
        one(1, 3, reward=math.nan),
        one(2, 0, reward=1.0),
        one(2, 1, reward=1.0),
    ]
    first, second = open_run(write(tmp_path, made)).stats()
    assert (first["split"], first["step"], first["rollouts"], first["scored"]) == ("train", 1, 4, 2)
    assert (first["reward"], first["reward_min"], first["reward_max"], first["reward_std"]) == (0.5, 0.0, 1.0, 0.5)
    assert (first["truncated"], first["errors"], first["tool_calls"], first["tool_errors"]) == (1, 1, 2, 1)
    assert (first["group_std"], first["flat_groups"]) == (0.5, 0)
    assert (second["groups"], second["flat_groups"]) == (1, 1)
    assert first["reward/correct"] == 2.5
    assert first["reward/format"] is None


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


def test_an_empty_run_answers_every_question(tmp_path):
    writer(tmp_path).write_run()
    stored = open_run(tmp_path)
    assert (len(stored), stored.steps, stored.stats(), list(stored.rollouts(step="last"))) == (0, [], [], [])
    assert stored.table(["id", "reward"]).num_rows == 0
    assert stored.sql("select count(*) as n from tool_calls").to_pylist() == [{"n": 0}]
    assert "none yet" in stored._repr_html_()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: list(run.rollouts(where="rewrd > 1")), "no column is named 'rewrd'; the columns are id, run_id"),
        (lambda run: list(run.rollouts(where="reward >")), "is not understood: syntax error"),
        (lambda run: list(run.rollouts(where="step = 'x'")), "is not understood: "),
        (lambda run: list(run.rollouts(order="-rewrd")), "no column is named 'rewrd'; the columns are"),
        (lambda run: list(run.rollouts(step="first")), "step='first' is not a step; give a number, 'last'"),
        (lambda run: list(run.rollouts(step=[None])), "step=None is not a step"),
        (lambda run: list(run.rollouts(step=1.5)), "step=1.5 is not a step"),
        (lambda run: list(run.rollouts(step=[1, True])), "step=True is not a step"),
        (lambda run: list(run.rollouts(step=math.inf)), "step=inf is not a step"),
        (lambda run: run.get("nope"), "no rollout 'nope' in "),
        (lambda run: run.get(None), "a rollout's id is text, not None"),
        (lambda run: run.group(None), "a rollout's id is text, not None"),
        (lambda run: run.history(None), "the prompt is None; give a rollout, or the text of a message"),
        (lambda run: run.count(limit=1.5), "limit=1.5 is not a number of rollouts"),
    ],
)
def test_a_wrong_question_is_one_sentence(run, ask, said):
    with pytest.raises(RunError) as caught:
        ask(run)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_condition_cannot_end_the_query_it_stands_in(run):
    for where in ("true) union select 1 --", "true; drop view rollouts", "true) --"):
        with pytest.raises(RunError):
            list(run.rollouts(where=where))
    assert len(run) == 16


@pytest.mark.parametrize("name", ["", "file.txt", "empty"])
def test_a_path_that_is_no_run_is_one_sentence(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    path = tmp_path / (name or "missing")
    for opening in (open_run, runs):
        with pytest.raises(RunError, match=r"does not exist; give a run's folder|no run found in or below"):
            opening(path)


def test_a_notebook_gets_escaped_html(tmp_path):
    folder = write(tmp_path, steps(2), model="<script>alert(1)")
    html = open_run(folder)._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "2.5 → 3.5" in html
