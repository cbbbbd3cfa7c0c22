"""Rewards that are NaN or infinite are counted by function, shown as gaps, and are never an answer to `x > 0`."""

from __future__ import annotations

import json
import math

import pytest
from reading import one, write

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError

NAN, INF = math.nan, math.inf


def odd(step, index, **fields):
    """In step 2 one reward is NaN and one is infinite; `format` is NaN once more in step 3."""
    value = {(2, 0): NAN, (2, 1): INF}.get((step, index), float(index))
    form = NAN if (step, index) == (3, 0) else 1.0
    return one(step, index, **{"reward": value, "rewards": {"correct": value, "format": form}, **fields})


@pytest.fixture
def run(tmp_path):
    return open_run(write(tmp_path, [odd(step, index) for step in (1, 2, 3) for index in range(4)]))


COUNTS = {
    "reward": {"nan": 1, "infinite": 1},
    "reward/correct": {"nan": 1, "infinite": 1},
    "reward/format": {"nan": 1, "infinite": 0},
}


def test_they_are_counted_by_function_and_by_step(run):
    assert run.health.not_finite == COUNTS
    assert [row["not_finite"] for row in run.stats()] == [0, 2, 1]
    assert "reward/correct: 1 NaN, 1 infinite" in run._repr_html_()


def test_a_finite_run_has_none(tmp_path):
    run = open_run(write(tmp_path, [one(1, index) for index in range(4)]))
    assert run.health.not_finite == {}
    assert '<th style="text-align:left">not finite</th>' not in run._repr_html_()


def test_the_course_of_a_run_has_a_gap_where_the_reward_is_not_finite(run):
    assert "▅ ▅ 1.5 → 1.5" in repr(run)


def test_steps_that_share_a_row_weigh_as_much_as_their_rewards(tmp_path):
    """Of a step's rollouts one was scored, of the next one's all four."""
    made = [one(1, index, reward=8.0 if index == 0 else None, rewards={}) for index in range(4)]
    made += [one(2, index, reward=3.0, rewards={}) for index in range(4)]
    run = open_run(write(tmp_path, [*made, *(one(3, index, reward=1.0, rewards={}) for index in range(4))]))
    rows = run.stats(width=2)
    assert [(row["step"], row["rollouts"], row["reward"]) for row in rows] == [(1, 8, 4.0), (3, 4, 1.0)]
    (wanted,) = run.sql("select avg(reward) from rollouts where step < 3").to_pylist()[0].values()
    assert rows[0]["reward"] == wanted
    assert rows[0]["groups"] == 2


def test_the_mean_of_integers_that_add_up_to_more_than_64_bits_is_their_mean(tmp_path):
    run = open_run(write(tmp_path, [one(1, index, completion_tokens=2**62) for index in range(4)]))
    assert run.stats()[0]["completion_tokens"] == 2.0**62


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("reward > 2.5", ["1.3", "2.1", "2.3", "3.3"]),
        ("not reward < 2.5", ["1.3", "2.1", "2.3", "3.3"]),
        ('"reward" >= 3', ["1.3", "2.1", "2.3", "3.3"]),
        ("REWARD > 3", ["2.1"]),
        ("reward/correct > 2.5", ["1.3", "2.1", "2.3", "3.3"]),
        ('"reward/correct" > 2.5 and step = 2', ["2.1", "2.3"]),
        ("reward > 3 or index = 0", ["1.0", "2.0", "2.1", "3.0"]),
        ("reward > (select avg(reward) from rollouts where step = 1) and step = 3", ["3.2", "3.3"]),
        ("reward = (select max(reward) from rollouts)", ["2.1"]),
        ("isnan(reward)", ["2.0"]),
        ("not isfinite( reward/format )", ["3.0"]),
        ("isinf(reward)", ["2.1"]),
        ("reward is null", []),
        ("judge.score > 0 and step = 1", ["1.1"]),
        ("'reward > 0' = 'reward > 0' and step = 1 and index = 0", ["1.0"]),
        ("cast(time as double) is not null and step = 1 and reward > 2", ["1.3"]),
    ],
)
def test_a_filter_finds_no_nan_where_it_compares(run, where, wanted):
    run.annotate("judge", [{"id": r.id, "score": NAN if r.index == 0 else 1.0 * (r.index == 1)} for r in run])
    assert [f"{r.step}.{r.index}" for r in run.rollouts(where=where)] == wanted
    assert run.count(where=where) == len(wanted)


def test_sql_stays_that_of_duckdb_in_which_nan_is_greater_than_every_number(run):
    assert run.sql("select count(*) as n from rollouts where reward > 1e300")["n"].to_pylist() == [2]


def test_no_value_to_choose_is_nan(run):
    assert run.values("reward/correct") == run.values("reward") == [0.0, 1.0, 2.0, 3.0, INF]


def test_the_bare_name_of_a_reward_function_is_its_column_where_it_means_nothing_else(run):
    assert [r.index for r in run.rollouts(where="correct > 2 and step = 1")] == [3]
    assert [r.index for r in run.rollouts(step=1, order="-correct", limit=1)] == [3]
    assert [r.index for r in run.rollouts(step=1, order="abs(correct) desc", limit=1)] == [3]
    assert run.values("format") == [1.0]
    assert run.sql("select avg(correct) as a from rollouts where step = 1")["a"].to_pylist() == [1.5]
    assert run.sql("select sum(r.Correct) as correct from rollouts r where step = 1")["correct"].to_pylist() == [6.0]
    run.annotate("judge", [{"id": run.rollouts()[0].id, "correct": 7.0}])
    assert run.sql("select correct from annotations.judge")["correct"].to_pylist() == [7.0]
    assert run.count(where="judge.correct > 1") == 1


def test_names_that_differ_only_in_case_are_two_functions(tmp_path):
    made = [one(1, 0, rewards={"correct": 1.0, "Correct": 2.0})]
    run = open_run(write(tmp_path, made, reward_names=("correct", "Correct")))
    assert (run.values("reward/correct"), run.values("reward/Correct")) == ([1.0], [2.0])
    assert (run.values("correct"), run.values("Correct")) == ([1.0], [2.0])
    with pytest.raises(RunError, match="no column is named 'CORRECT'; did you mean 'reward/correct'"):
        run.count(where="CORRECT > 1")


@pytest.mark.parametrize("name", ["corect", "reward/corect", "Corect"])
def test_a_slip_of_the_pen_is_answered_with_the_near_name(run, name):
    for ask in (
        lambda: run.sql(f'select "{name}" from rollouts'),
        lambda: run.values(name),
        lambda: run.table([name]),
    ):
        with pytest.raises(RunError, match=f"no column is named '{name}'; did you mean 'reward/correct'"):
            ask()


# --- on the command line ---------------------------------------------------------------------------------------------


def rollouts(capsys, *words):
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


@pytest.mark.needs(part="checks")
def test_stats_and_doctor_name_them(run, capsys):
    counts = "reward: 1 NaN, 1 infinite; reward/correct: 1 NaN, 1 infinite; reward/format: 1 NaN"
    code, out, err = rollouts(capsys, "stats", run.dir)
    assert code == 0
    assert f"NaN or infinite: {counts}" in err
    assert [line.split("\t")[7] for line in out.splitlines()] == ["not finite", "0", "2", "1"]
    assert json.loads(rollouts(capsys, "stats", run.dir, "--json")[1])["not_finite"] == COUNTS
    _, out, _ = rollouts(capsys, "doctor", run.dir, "--offline", "--json")
    warnings = [check for check in json.loads(out)["checks"] if "NaN" in check["found"]]
    assert {check["status"] for check in warnings} == {"warn"}
    assert all(check["do"].startswith("rollouts show") for check in warnings)


def test_json_is_exact_and_any_parser_reads_it(run, capsys):
    query = "select reward, [reward] as many, {'x': reward} as of from rollouts where step = 2 order by index limit 2"
    _, out, _ = rollouts(capsys, "sql", run.dir, query, "--json")
    rows = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert [row["reward"] for row in rows] == ["NaN", "Infinity"]
    assert [(row["many"], row["of"]) for row in rows] == [([row["reward"]], {"x": row["reward"]}) for row in rows]
    assert math.isnan(float(rows[0]["reward"]))
    assert float(rows[1]["reward"]) == INF
    _, out, _ = rollouts(capsys, "stats", run.dir, "--json")
    assert json.loads(out)["steps"][1]["reward"] == "Infinity"


@pytest.mark.needs(part="learn")
def test_diff_compares_the_finite_rewards_and_counts_the_others(tmp_path, capsys):
    for name, last in (("a", 3.0), ("b", INF)):
        write(tmp_path / name, [one(1, index, group=0, reward=2.0 if index else last, rewards={}) for index in (0, 1)])
    for words in (("a", "b"), ("b", "a")):
        code, out, err = rollouts(capsys, "diff", *(tmp_path / name for name in words), "--json")
        told = json.loads(out)
        assert code == 0
        assert {told[f"reward_{'ab'[words.index(name)]}"] for name in ("b",)} == {2.0}
        assert {told["not_finite_a"], told["not_finite_b"]} == {0, 1}
        assert "1 reward NaN or infinite, left out of the means" in err


def test_a_group_is_of_one_generation_and_split(tmp_path, capsys):
    made = [one(1, index, group=0, generation=1 + index // 4, id=f"t{index}") for index in range(8)]
    made += [one(1, index, group=0, split="eval", generation=9, id=f"e{index}") for index in range(4)]
    folder = write(tmp_path, made)
    _, out, _ = rollouts(capsys, "show", folder, "--group", "0")
    assert out.count("4 answers") == 3


def test_the_history_of_a_prompt_with_nan_is_its_history(tmp_path):
    prompt = ({"role": "user", "content": "how far?", "limits": {"most": NAN}},)
    run = open_run(write(tmp_path, [one(step, index, prompt=prompt) for step in (1, 2) for index in range(2)]))
    assert [r.step for r in run.history(run[0])] == [1, 1, 2, 2]
