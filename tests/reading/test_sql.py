"""SQL over a run: what it sees, and that it can do nothing but read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reading import called, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.errors import RunError
from rollout_plugins.reading.runs import StoredRun


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    made = [
        one(1, 0, tool_calls=(called("search", q="x"), replace(called("price", "error"), position=1))),
        one(1, 1, split="eval", id="e"),
        one(2, 0, tool_calls=(called("price"),)),
    ]
    return open_run(write(tmp_path, made))


def test_rollouts_messages_and_tool_calls_are_tables(run):
    assert run.sql("select step, avg(reward) as reward from rollouts group by step order by step").to_pylist() == [
        {"step": 1, "reward": 1.5},
        {"step": 2, "reward": 2.0},
    ]
    said = run.sql("select part, position, role, content from messages where id = 'e' order by part desc").to_pylist()
    assert said == [
        {"part": "prompt", "position": 0, "role": "user", "content": "question 0"},
        {"part": "completion", "position": 0, "role": "assistant", "content": "Answer 1 of step 1."},
    ]
    calls = run.sql(
        "select step, position, name, arguments, status from tool_calls order by step, position"
    ).to_pylist()
    assert [tuple(call.values()) for call in calls] == [
        (1, 0, "search", '{"q":"x"}', "ok"),
        (1, 1, "price", "{}", "error"),
        (2, 0, "price", "{}", "ok"),
    ]


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) as n from rollouts",
        "with r as (from rollouts) select count(*) as n from r;",
        "from rollouts select count(*) as n",
        "  -- how many?\n  select count(*) as n from rollouts  ",
    ],
)
def test_ways_to_write_a_select(run, query):
    assert run.sql(query).to_pylist() == [{"n": 3}]


def test_a_star_shows_the_columns_of_the_files_and_nothing_of_ours(run):
    names = run.sql("select * from rollouts").column_names
    assert names == run.sql("describe rollouts")["column_name"].to_pylist() == run.columns
    assert not [name for name in names if name.startswith("_") or name == "filename"]


@pytest.mark.parametrize(
    "query",
    [
        "create table t as select 1",
        "insert into rollouts select * from rollouts",
        "delete from rollouts",
        "update rollouts set reward = 1",
        "drop view rollouts",
        "copy rollouts to 'out.parquet'",
        "copy (select 1) to 'out.csv'",
        "attach 'x.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma database_list",
        "call pragma_version()",
        "export database 'x'",
        "explain analyze copy rollouts to 'x.csv'",
        "select 1; drop view rollouts",
        "checkpoint",
        "",
        ";",
    ],
)
def test_sql_that_is_not_a_select_is_one_sentence(run, query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        RunError, match=r"^(runs are read-only|the SQL has (no|\d) statements).*write one SELECT over roll"
    ):
        run.sql(query)
    assert sorted(tmp_path.rglob("*")) == before
    assert len(run) == 3


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('{secret}')",
        "select * from read_csv('{secret}')",
        "select * from '{secret}'",
        "select * from read_blob('{folder}/../secret.csv')",
        "select * from glob('{folder}/../*')",
        "select * from read_parquet('https://example.com/x.parquet')",
    ],
)
def test_sql_reads_nothing_outside_the_run(run, query, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(RunError) as caught:
        run.sql(query.format(secret=secret, folder=run.dir))
    assert "\n" not in str(caught.value)


def test_a_condition_reads_nothing_outside_the_run(run):
    with pytest.raises(RunError, match=r"reaches outside the run; it may read rollouts, messages"):
        list(run.rollouts(where="id in (select content from read_text('/etc/hosts'))"))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select rewrd from rollouts", "no column is named 'rewrd'; did you mean 'reward'"),
        ("select * from rolouts", "no table is named 'rolouts'; there are rollouts, messages, tool_calls"),
        ("selec 1", "the SQL is not understood: syntax error"),
        ("select nope(reward) from rollouts", "the SQL is not understood"),
        ("select cast(id as integer) from rollouts", "the SQL is not understood"),
    ],
)
def test_wrong_sql_is_one_sentence(run, query, said):
    with pytest.raises(RunError) as caught:
        run.sql(query)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_python_variables_are_not_tables(run):
    secret = run.table(["id"])  # noqa: F841 - DuckDB would find it by its name
    with pytest.raises(RunError):
        run.sql("select * from secret")


def test_annotations_stand_beside_the_rollouts_and_in_a_table_of_their_own(run):
    run.annotate("judge", [{"id": "e", "score": 0.5, "why": "vague"}])
    assert run.sql("select id, judge.score as score from rollouts where judge.why = 'vague'").to_pylist() == [
        {"id": "e", "score": 0.5}
    ]
    assert run.sql("select * from annotations.judge").to_pylist() == [{"id": "e", "score": 0.5, "why": "vague"}]
    assert run.sql("select r.id from rollouts r join annotations.judge j using (id)").to_pylist() == [{"id": "e"}]
    assert run.sql("select count(judge) as n, count(*) as m from rollouts").to_pylist() == [{"n": 1, "m": 3}]


def test_sql_over_a_live_run(tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0, tool_calls=(called("a"),))])
    stored = open_run(tmp_path)
    assert stored.sql("select count(*) as n from tool_calls").to_pylist() == [{"n": 1}]


def test_an_answer_can_be_large(tmp_path):
    stored = open_run(write(tmp_path, [one(1, n, columns={"text": "x" * 50_000}) for n in range(200)]))
    assert stored.sql("select columns from rollouts").num_rows == 200


def test_sql_leaves_no_files_behind(tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    stored = open_run(write(tmp_path, steps(3)))
    stored.sql("select * from rollouts order by random()")
    assert list((tmp_path / "cwd").iterdir()) == []
    assert sorted(path.name for path in stored.dir.rglob("*") if path.is_file()) == [
        "001-00000-000000.parquet",
        "run.json",
    ]
