"""What a run says when something is wrong, or only looks wrong, is true and says what to do."""

from __future__ import annotations

import csv
import io
import json
import warnings

import pytest
from reading import one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError


def test_a_run_whose_killed_attempts_were_joined_is_opened_without_a_warning(tmp_path):
    for attempt in (1, 2):
        for rank in (0, 1):
            live = writer(tmp_path, attempt=attempt, rank=rank, world_size=2, resumed_from=5 * (attempt - 1))
            live.write_run()
            live.write("train", [one(attempt, rank, attempt=attempt, rank=rank)])
            live._seal("train")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_run(tmp_path)) == 4
        assert main(["compact", str(tmp_path / "r1"), "--unended"]) == 0
        (live.dir / "run-00001.json").unlink()
        assert len(open_run(tmp_path)) == 4


def test_the_values_of_every_column_of_numbers_and_texts(tmp_path):
    run = open_run(write(tmp_path, [one(1, n, extra={"n": n}) for n in range(4)]))
    ids = [rollout.id for rollout in run]
    run.annotate("judge", [{"id": ids[0], "score": 0.5, "why": "good"}, {"id": ids[1], "score": 0.25}])
    assert run.values("judge.score") == [0.25, 0.5]
    assert run.values("judge.why") == ["good"]
    assert [json.loads(text) for text in run.values("extra")] == [{"n": n} for n in range(4)]
    assert run.values("marks") == []
    assert all(isinstance(run.values(column), list) for column in run.columns)


def test_an_empty_run_is_compacted(tmp_path, capsys):
    live = writer(tmp_path)
    live.close({"rollouts": {}})
    assert main(["compact", str(live.dir)]) == 0
    assert capsys.readouterr().out == "nothing to join: 0 rollouts in 0 files\n"


WRONG = {
    "search": "text to look for, such as 'error'",
    "where": "a condition such as 'reward < 0'",
    "order": "a column such as '-reward', or a list of columns",
    "split": "the name of a split, such as 'train'",
    "finish": "a reason to end, such as 'length'",
    "tool": "the name of a tool",
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("value", [3, ["x", 3], b"x"], ids=repr)
def test_a_filter_that_is_not_text_is_refused(tmp_path, name, value):
    run = open_run(write(tmp_path, steps(1)))
    for ask in (run.rollouts, run.count, run.batches, run.table):
        with pytest.raises(RunError) as raised:
            ask(**{name: value})
        assert str(raised.value) == f"{name}={value!r} is not {WRONG[name]}"
    with pytest.raises(RunError, match=r"search=3 is not text to look for"):
        run.rollouts(search=3)
    with pytest.raises(RunError, match=r"has_error='no' is not True or False"):
        run.count(has_error="no")


QUERY = """
select [1.5, 2.0] as list, {'a': 1, 'b': null} as record, map {'k': 1} as map, 1.50 as number, 'ab\\xff'::blob as bytes,
  interval 1 month as span, sum(12) over () as total, date '2020-01-01' as day, true as yes, [{'x': 'nan'::double}] as odd, rewards
from rollouts limit 1
"""
REWARDS = [{"name": "correct", "value": 1.0}, {"name": "format", "value": None}]


def test_lists_and_records_are_json_in_what_sql_prints(tmp_path, capsys):
    folder = str(write(tmp_path, steps(1)))
    assert main(["sql", folder, QUERY, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "list": [1.5, 2.0], "record": {"a": 1, "b": None}, "map": {"k": 1}, "number": 1.5, "bytes": "ab\\xff",
        "span": "1 month", "total": 48, "day": "2020-01-01", "yes": True, "odd": [{"x": "NaN"}], "rewards": REWARDS,
    }  # fmt: skip
    assert main(["sql", folder, QUERY, "--csv"]) == 0
    (cells,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    nested = {name: json.loads(cells[name]) for name in ("list", "record", "map", "odd", "rewards")}
    assert nested == {name: row[name] for name in nested}
    assert {name: cells[name] for name in ("number", "bytes", "span", "day", "yes")} == {
        "number": "1.5", "bytes": "ab\\xff", "span": "1 month", "day": "2020-01-01", "yes": "True",
    }  # fmt: skip
