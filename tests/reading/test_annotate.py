"""Columns added to rollouts later."""

from __future__ import annotations

import math
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import ids, one, steps, write, writer

from examples import thorough
from rollout_plugins import open_run
from rollout_plugins.errors import RunError
from rollout_plugins.reading.runs import Runs, StoredRun
from rollout_plugins.store.annotations import folder_name

FIRST, SECOND, THIRD = (f"r1.1.t1.0.{n}" for n in range(3))


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return open_run(write(tmp_path, steps(2)))


def said(run: StoredRun, rollout_id: str) -> dict[str, object]:
    return {name: value for name, value in run.get(rollout_id).extra.items() if "." in name}


def test_annotations_join_in_every_reader(run):
    assert run.annotate("judge", [{"id": FIRST, "score": 0.25}, {"id": SECOND, "score": 0.75}]) == 2
    assert run.annotations == {"judge": ["score"]}
    assert "judge.score" in run.columns
    assert said(run, FIRST) == {"judge.score": 0.25}
    assert [r.extra.get("judge.score") for r in run.rollouts(step=1)] == [0.25, 0.75, None, None]
    assert ids(run.rollouts(where="judge.score > 0.5")) == ["1.1"]
    assert ids(run.rollouts(order="-judge.score", limit=2)) == ["1.1", "1.0"]
    assert run.table(["id", "judge.score"], limit=2)["judge.score"].to_pylist() == [0.25, 0.75]
    assert run.table(["judge.score"]).to_pandas()["judge.score"].sum() == 1.0
    assert run.sql("select avg(judge.score) as a from rollouts").to_pylist() == [{"a": 0.5}]
    assert "judge" in run._repr_html_()


def test_the_last_write_of_a_producer_wins_column_by_column(run):
    run.annotate("judge", [{"id": FIRST, "score": 1, "why": "good"}, {"id": FIRST, "score": 2, "why": "better"}])
    run.annotate("judge", [{"id": FIRST, "score": 3}])
    run.annotate("person", [{"id": FIRST, "score": -1}])
    assert said(run, FIRST) == {"judge.score": 3, "judge.why": "better", "person.score": -1}


def test_none_takes_a_value_back(run):
    run.annotate("judge", [{"id": FIRST, "score": 1, "why": "good"}])
    run.annotate("judge", [{"id": FIRST, "score": None}])
    assert said(run, FIRST) == {"judge.why": "good"}
    run.annotate("judge", [{"id": FIRST, "score": 5}])
    assert said(run, FIRST) == {"judge.why": "good", "judge.score": 5}


def test_nothing_is_rewritten(run):
    before = {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()}
    run.annotate("judge", [{"id": FIRST, "score": 1}])
    more = {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()}
    run.annotate("judge", [{"id": FIRST, "score": 2}])
    assert {path: path.read_bytes() for path in before} == before
    assert {path: path.read_bytes() for path in more} == more
    assert len(list((run.dir / "annotations").rglob("*.parquet"))) == 2


def test_the_files_open_without_us(run):
    run.annotate("judge", [{"id": FIRST, "score": 0.5}])
    shard = next((run.dir / "annotations" / "judge").glob("*.parquet"))
    assert pq.read_table(shard).to_pylist() == [{"id": FIRST, "score": 0.5}]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([1, 2.5], [1.0, 2.5]),
        ([True, False], [True, False]),
        ([1, "two"], ["1", "two"]),
        ([{"a": [1]}, None], ['{"a":[1]}', None]),
        ([2**70, 1], ['{"$int":"0x400000000000000000"}', "1"]),
        ([np.float32(0.5), np.int64(3)], [0.5, 3.0]),
        ([math.inf, -math.inf], [math.inf, -math.inf]),
        (["\ud800", "\0"], ["?", "\0"]),
        ([None, None], [None, None]),
    ],
)
def test_values_of_any_kind_are_kept(run, values, read):
    run.annotate("p", [{"id": one_id, "v": value} for one_id, value in zip((FIRST, SECOND), values, strict=True)])
    assert run.table(["p.v"], limit=2)["p.v"].to_pylist() == read


def test_a_column_may_change_its_type_between_writes(run):
    run.annotate("p", [{"id": FIRST, "v": 1}])
    run.annotate("p", [{"id": SECOND, "v": 0.5}])
    assert run.table(["p.v"], limit=2)["p.v"].to_pylist() == [1.0, 0.5]
    run.annotate("p", [{"id": THIRD, "v": "text"}])
    assert run.table(["p.v"], limit=3)["p.v"].to_pylist() == ["1", "0.5", "text"]


HOSTILE = [
    "../../evil",
    "/etc/x",
    "a/b",
    "..",
    ".",
    "C:\\x",
    "con",
    "a" * 500,
    'quo"te',
    "semi;'--",
    "ü",
    "Judge",
    "judge",
    "\0",
    "\ud800",
    "a.b",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_producers_name_never_becomes_a_path(run, name):
    before = set(run.dir.parent.rglob("*"))
    run.annotate(name, [{"id": FIRST, "score": 1}])
    new = set(run.dir.parent.rglob("*")) - before
    inside = run.dir / "annotations"
    assert all(path == inside or inside in path.parents for path in new)
    assert len([path for path in new if path.is_dir()]) == 2
    assert list(said(run, FIRST).values()) == [1]


def test_different_names_get_different_folders():
    assert len({folder_name(name).casefold() for name in HOSTILE}) == len(HOSTILE)


def test_producers_that_differ_in_case_do_not_break_reading(run):
    run.annotate("judge", [{"id": FIRST, "score": 1}])
    run.annotate("Judge", [{"id": FIRST, "score": 2}])
    assert len(said(run, FIRST)) == 1
    assert len(run) == 8


@thorough
@given(
    st.text(min_size=1).filter(str.strip),
    st.dictionaries(
        st.text(min_size=1).filter(lambda t: t != "id"),
        st.one_of(st.none(), st.floats(), st.text(), st.integers(), st.booleans()),
        min_size=1,
        max_size=3,
    ),
)
def test_any_names_and_values_are_written_and_read(run, producer, values):
    if len(run.annotations) > 5:  # each question reads what all producers said
        shutil.rmtree(run.dir / "annotations")
        run.refresh()
    with suppress(RunError):  # names that are taken, or differ in case alone
        run.annotate(producer, [{"id": FIRST, **values}])
    assert run.get(FIRST).id == FIRST
    assert run.sql("select * from rollouts").num_rows == 8


@pytest.mark.parametrize(
    ("producer", "rows", "said"),
    [
        ("", [{"id": "x", "a": 1}], "a producer needs a name"),
        (None, [{"id": "x", "a": 1}], "a producer needs a name"),
        ("Reward", [{"id": "x", "a": 1}], "is a column of every run; give the producer another name"),
        ("reward/correct", [{"id": "x", "a": 1}], "is a column of every run"),
        ("p", [{"id": FIRST, "a": 1}, {"a": 1}], "row 1 of the annotations has no text 'id'"),
        ("p", [["x"]], "row 0 of the annotations has no text 'id'"),
        ("p", [{"id": 3, "a": 1}], "row 0 of the annotations has no text 'id'"),
        ("p", [{"id": "x"}], "nothing but an id; add a column"),
        ("p", [{"id": "x", 3: 1}], "names must be text"),
        ("p", [{"id": "x", "a": 1, "A": 2}], "differ in more than case"),
        ("p", [{"id": "x", "ID": 2}], "differ in more than case"),
    ],
)
def test_wrong_rows_are_one_sentence_and_write_nothing(run, producer, rows, said):
    with pytest.raises(RunError, match=said):
        run.annotate(producer, rows)
    assert not (run.dir / "annotations").exists()


def test_a_damaged_shard_hides_nothing_else(run):
    run.annotate("judge", [{"id": FIRST, "score": 1}])
    run.annotate("judge", [{"id": SECOND, "score": 2}])
    newest = max((run.dir / "annotations" / "judge").glob("*.parquet"))
    newest.write_bytes(newest.read_bytes()[:-20])
    run.refresh()
    assert said(run, FIRST) == {"judge.score": 1}
    assert len(run) == 8
    assert list(run.health.damaged) == [newest.relative_to(run.dir).as_posix()]


def test_annotations_reach_a_live_run_and_its_later_rollouts(tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0)])
    stored = open_run(tmp_path)
    stored.annotate("judge", [{"id": "r1.1.t1.0.0", "score": 1}, {"id": "r1.1.t2.0.0", "score": 2}])
    live.write("train", [one(2, 0)])
    stored.refresh()
    assert [r.extra["judge.score"] for r in stored.rollouts()] == [1, 2]


def test_ids_that_are_all_unknown_are_an_error_and_a_live_runs_newest_rollouts_are_known(tmp_path):
    live = writer(tmp_path)
    live.write("train", [one(1, 0)])
    stored = open_run(tmp_path)
    with pytest.raises(RunError, match=r"no rollout of .* has any of these ids: 'r1\.1\.t2\.0\.0'; nothing was"):
        stored.annotate("judge", [{"id": "r1.1.t2.0.0", "score": 2}])
    assert stored.annotations == {}
    live.write("train", [one(2, 0)])
    assert stored.annotate("judge", [{"id": "r1.1.t2.0.0", "score": 2}]) == 1
    assert stored.annotate("judge", []) == 0


def test_many_small_writes_stay_readable(run):
    for number in range(25):
        run.annotate("judge", [{"id": FIRST, "score": number}])
    assert said(run, FIRST) == {"judge.score": 24}


def test_runs_of_one_id_keep_their_annotations_apart(tmp_path):
    """A run that was copied, and each copy judged."""
    first = write(tmp_path / "a", steps(1))
    shutil.copytree(first, tmp_path / "b" / "r1")
    for name, score in (("a", 1), ("b", 2)):
        open_run(tmp_path / name).annotate("judge", [{"id": "r1.1.t1.0.0", "score": score}])
    both = Runs([open_run(tmp_path / "a"), open_run(tmp_path / "b")])
    query = "select judge.score as score, count(*) as n from rollouts group by all order by all"
    assert both.sql(query).to_pylist() == [{"score": 1, "n": 1}, {"score": 2, "n": 1}, {"score": None, "n": 6}]


def test_producers_that_differ_only_in_case_are_one_of_whom_the_latest_value_counts(run):
    run.annotate("judge", [{"id": FIRST, "score": 1, "note": "fine"}])
    run.annotate("Judge", [{"id": FIRST, "score": 2}])
    assert said(run, FIRST) == {"judge.score": 2, "judge.note": "fine"}
    assert run.annotations == {"judge": ["score", "note"]}
    assert run.count(where="Judge.score = 2") == run.count(where="judge.score = 2") == 1


def test_a_column_may_have_the_name_of_one_of_ours(run):
    columns = {"_run": 5, "_row": 6, "_file": 7, "v": 8, "at_": 9, "c0": 10, "run_id": "x"}
    run.annotate("judge", [{"id": FIRST, **columns}])
    assert said(run, FIRST) == {f"judge.{name}": value for name, value in columns.items()}
    (row,) = run.sql("select * from annotations.judge").to_pylist()
    assert row == {"id": FIRST, **columns}
    assert run.count(where="judge._run = 5") == 1


@pytest.mark.parametrize("name", ["filename", "File_Row_Number"])
def test_a_column_of_a_name_that_cannot_be_read_is_refused(run, name):
    with pytest.raises(RunError, match=f"reserved name: '{name}' is the name of a column that DuckDB adds"):
        run.annotate("judge", [{"id": FIRST, name: 1}])
    assert len(list(run)) == len(run)
