"""What is asked of a run, and what it answers."""

from __future__ import annotations

import math
import pickle
import shutil
from dataclasses import replace

import duckdb
import pyarrow.parquet as pq
import pytest
from reading import called, ids, one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.errors import RunError
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.store import write as writing
from rollout_plugins.testing import hostile_rollouts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """To be asked, not changed."""
    return open_run(write(tmp_path_factory.mktemp("read"), steps(4)))


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
    assert ids(stored.rollouts(search='SAY "HI"')) == ["1.0"]
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
        everything = ids(stored.rollouts(search=text))
        for limit in (0, 1, 2, 3, 50):
            assert ids(stored.rollouts(search=text, limit=limit)) == everything[:limit]
            assert stored.count(search=text, limit=limit) == min(limit, len(everything))
            assert (
                ids(stored.rollouts(search=text, limit=limit, order="-step"))
                == ids(stored.rollouts(search=text, order="-step"))[:limit]
            )
    assert ids(stored.rollouts(search="b>", where="step > 4", limit=2)) == ["5.0", "11.0"]
    assert ids(stored.rollouts(search="b>", step="10-20", limit=9)) == ["11.0", "12.0"]


def test_search_looks_into_prompts_reasoning_and_names_of_tools(tmp_path):
    said = ({"role": "assistant", "content": "no", "reasoning_content": "because of ZEBRAS"},)
    blocks = ({"role": "user", "content": [{"type": "text", "text": "see the yak"}]},)
    stored = open_run(
        write(tmp_path, [one(1, 0, completion=said), one(1, 1, prompt=blocks), one(1, 2, tool_calls=(called("gnu"),))])
    )
    assert [ids(stored.rollouts(search=text)) for text in ("zebra", "the yak", "gnu", "100%", "'; --", "\0", "\ud800")] == [
        ["1.0"], ["1.1"], ["1.2"], [], [], [], []
    ]  # fmt: skip


def test_order_puts_missing_and_nan_last_in_both_directions(tmp_path):
    rewards = [2.0, None, math.nan, -1.0, math.inf]
    stored = open_run(write(tmp_path, [one(1, index, reward=reward) for index, reward in enumerate(rewards)]))
    assert ids(stored.rollouts(order="-reward")) == ["1.4", "1.0", "1.3", "1.2", "1.1"]
    assert ids(stored.rollouts(order="reward")) == ["1.3", "1.0", "1.4", "1.2", "1.1"]


def test_nan_is_no_number_and_never_the_best(tmp_path):
    rewards = [0.5, math.nan, 2.0]
    stored = open_run(write(tmp_path / "run", [one(1, index, reward=value) for index, value in enumerate(rewards)]))
    stored.annotate("judge", [{"id": rollout.id, "score": rollout.reward} for rollout in stored.rollouts()])
    writing.write_parquet(tmp_path / "all.parquet", stored.batches(["id", "reward", "judge.score"]))
    for column in ("reward", "judge.score"):
        assert ids(stored.rollouts(order=f"-{column}")) == ["1.2", "1.0", "1.1"]
        assert ids(stored.rollouts(where=f"{column} < 100")) == ["1.0", "1.2"]
        assert ids(stored.rollouts(where=f"isnan({column})")) == ["1.1"]
        query = f"select count(*) from '{tmp_path / 'all.parquet'}' where \"{column}\" < 100"
        assert duckdb.connect().execute(query).fetchall() == [(2,)]


def test_order_by_several_columns_and_by_sql(run):
    assert ids(run.rollouts(order="-step,reward", limit=2)) == ["4.0", "4.1"]
    assert ids(run.rollouts(order=["-group", "-step"], limit=2)) == ["4.2", "4.3"]
    assert ids(run.rollouts(order="abs(reward - 3.9), step", limit=1)) == ["1.3"]
    assert ids(run.rollouts(order="step desc, index desc", limit=1)) == ["4.3"]


def test_a_group_and_the_history_of_a_prompt(run):
    assert ids(run.siblings("r1.1.t2.0.3")) == ["2.2", "2.3"]
    assert ids(run.history(run.get("r1.1.t2.0.3"), limit=3)) == ["1.2", "1.3", "2.2"]
    assert ids(run.history("question 0", step="last")) == ["4.0", "4.1"]
    assert ids(run.history("question")) == []


def test_history_of_a_prompt_that_only_shares_a_message_with_others(tmp_path):
    system = {"role": "system", "content": "A long system prompt that everything shares."}
    made = [one(1, n, prompt=(system, {"role": "user", "content": f"q{n}"})) for n in range(3)]
    stored = open_run(write(tmp_path, made))
    assert ids(stored.history(made[1])) == ["1.1"]


def test_a_run_can_be_handed_to_another_process_before_it_is_asked(run):
    assert len(pickle.loads(pickle.dumps(open_run(run.dir)))) == len(run)


def test_a_run_that_was_removed_meanwhile_is_one_sentence(tmp_path):
    run = open_run(write(tmp_path, steps(4)))
    assert len(run) == 16
    shutil.rmtree(run.dir)
    with pytest.raises(RunError, match=r"cannot be read: ") as caught:
        run.count(where="reward > 0")
    assert "\n" not in str(caught.value)


def test_many_rollouts_stream_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SEAL_BYTES", 200_000)
    made = [one(step, index) for step in range(1, 31) for index in range(64)]
    stored = open_run(write(tmp_path, made))
    assert len(stored.files) > 2
    assert list(stored.rollouts()) == made
    assert list(stored.rollouts(order="-index,step")) == sorted(made, key=lambda r: (-r.index, r.step))
    first = stored.rollouts(order="-reward")
    assert first[0].reward == max(r.reward for r in made)


def test_hostile_rollouts_read_back_and_hide_nothing(tmp_path):
    made = [replace(r, id=f"h{n}", index=n, step=1, generation=1) for n, r in enumerate(hostile_rollouts())]
    stored = open_run(write(tmp_path, [*made, one(2, 0)]))
    assert len(list(stored.rollouts())) == len(made) + 1
    assert ids(stored.rollouts(step=2)) == ["2.0"]
    assert stored.health.damaged == {}
    stored.stats()
    stored._repr_html_()
    assert len(list(stored.rollouts(search="e"))) >= 1


def test_a_table_has_the_columns_asked_for_with_their_types(run):
    table = run.table(["reward", "id", "tool_calls"], step=2)
    assert table.column_names == ["reward", "id", "tool_calls"]
    assert table["reward"].to_pylist() == [2.0, 3.0, 4.0, 5.0]
    stored = pq.read_schema(run.files[0])
    assert all(table.schema.field(name).type == stored.field(name).type for name in table.column_names)
    assert run.table().num_rows == 16
    assert run.table(["id"], limit=0).to_pydict() == {"id": []}
    with pytest.raises(RunError, match=r"no column is named 'nope'; accepted: advantage, attempt"):
        run.table(["nope"])


def test_an_arrow_table_converts_to_pandas_polars_and_datasets(run):
    polars, datasets = pytest.importorskip("polars"), pytest.importorskip("datasets")
    columns = ["id", "step", "reward"]
    assert run.table(columns, step=1).to_pandas()["reward"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert polars.from_arrow(run.table(columns, step=1))["reward"].to_list() == [1.0, 2.0, 3.0, 4.0]
    assert datasets.Dataset(run.table(columns, step=1))["reward"][:] == [1.0, 2.0, 3.0, 4.0]
    assert datasets.Dataset(run.table())[0]["completion"][0]["content"] == "Answer 0 of step 1."


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


def test_an_empty_run_answers_every_question(tmp_path):
    writer(tmp_path).write_run()
    stored = open_run(tmp_path)
    assert (len(stored), stored.steps, stored.stats(), list(stored.rollouts(step="last"))) == (0, [], [], [])
    assert stored.table(["id", "reward"]).num_rows == 0
    assert stored.sql("select count(*) as n from tool_calls").to_pylist() == [{"n": 0}]
    assert "none" in stored._repr_html_()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: list(run.rollouts(where="rewrd > 1")), "no column is named 'rewrd'; did you mean 'reward'"),
        (lambda run: list(run.rollouts(where="reward >")), "is not understood: syntax error"),
        (lambda run: list(run.rollouts(where="step = 'x'")), "is not understood: "),
        (lambda run: list(run.rollouts(order="-rewrd")), "no column is named 'rewrd'; did you mean 'reward'"),
        (lambda run: list(run.rollouts(step="first")), "step='first' is not a step; give a number, 'last'"),
        (lambda run: list(run.rollouts(step="\u0661")), "is not a step"),
        (lambda run: run.count(group="first"), "group='first' is not a whole number"),
        (lambda run: list(run.rollouts(step=[None])), "step=None is not a step"),
        (lambda run: list(run.rollouts(step=1.5)), "step=1.5 is not a step"),
        (lambda run: list(run.rollouts(step=[1, True])), "step=True is not a step"),
        (lambda run: list(run.rollouts(step=math.inf)), "step=inf is not a step"),
        (lambda run: run.get("nope"), "no rollout 'nope' in "),
        (lambda run: run.get(None), "a rollout's id is text, not None"),
        (lambda run: run.siblings(None), "a rollout's id is text, not None"),
        (lambda run: run.history(None), "the prompt is None; give a rollout, or the text of a message"),
        (lambda run: run.count(limit=1.5), "limit=1.5 is not a number of rollouts"),
        (lambda run: list(run.rollouts(limit=-1)), "limit=-1 is not a number of rollouts"),
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


def test_a_notebook_gets_escaped_html(tmp_path):
    folder = write(tmp_path, steps(2), model="<script>alert(1)")
    html = open_run(folder)._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "2.5 → 3.5" in html
