"""Of a very large run the first rollouts of an answer are looked up at once, the others when they are asked for."""

import pytest
from reading import ids, one, write, writer

from rollout_plugins import open_run
from rollout_plugins.reading import lazy_rollouts, query


@pytest.fixture(autouse=True)
def thirty_are_very_many(monkeypatch):
    monkeypatch.setattr(lazy_rollouts, "LARGE", 30)
    monkeypatch.setattr(lazy_rollouts, "FIRST", 10)


@pytest.fixture
def looked_up(monkeypatch):
    """How many places each look at the run's files gave."""
    found, places = [], query.Database._ordered_places

    def count(self, *given):
        table = places(self, *given)
        found.append(table.num_rows)
        return table

    monkeypatch.setattr(query.Database, "_ordered_places", count)
    return found


def made(steps=10, size=4):
    return [one(step, index, reward=float(step * index % 7)) for step in range(1, steps + 1) for index in range(size)]


@pytest.mark.parametrize(
    "asked",
    [{}, {"order": "-reward"}, {"where": "reward > 0"}, {"where": "index = 3", "order": "reward,-step"}, {"step": 3}],
)
def test_every_page_is_what_it_is_in_a_small_run(tmp_path, monkeypatch, looked_up, asked):
    run = open_run(write(tmp_path, made()))
    found = run.rollouts(**asked)
    assert looked_up.pop() <= 10
    first = ids(found.page(0, 10))
    at = ids(found.at([3, 1]))
    assert (len(found), looked_up) == (run.count(**asked), [])
    pages = [ids(found.page(start, 7)) for start in range(0, len(found) + 7, 7)]
    monkeypatch.setattr(lazy_rollouts, "LARGE", 1000)
    wanted = ids(run.rollouts(**asked))
    assert ([each for page in pages for each in page], first, at) == (wanted, wanted[:10], [wanted[3], wanted[1]])
    assert ids(found) == wanted
    assert len(found) == run.count(**asked) == len(wanted)


def test_reading_all_begins_with_the_first(tmp_path, looked_up):
    run = open_run(write(tmp_path, made()))
    run.annotate("judge", [{"id": rollout.id, "score": rollout.step} for rollout in made()])
    del looked_up[:]
    reading = iter(run.rollouts())
    assert (next(reading).extra["judge.score"], looked_up) == (1, [10])
    assert [rollout.extra["judge.score"] for rollout in reading] == [n // 4 + 1 for n in range(1, 40)]
    assert looked_up == [10, 40]
    table = run.table(["judge.score", "index", "step"], order="-step")
    assert table.to_pydict() == {
        "judge.score": [10 - n // 4 for n in range(40)],
        "index": [n % 4 for n in range(40)],
        "step": [10 - n // 4 for n in range(40)],
    }
    assert [row["step"] for row in run.rollouts().rows(["step"])] == [n // 4 + 1 for n in range(40)]


def test_a_rollout_is_found_among_the_first(tmp_path, looked_up):
    found = open_run(write(tmp_path, made())).rollouts()
    assert found.position("r1.1.t2.0.1") == 5
    assert found.position("r1.1.t9.0.1") is None
    assert looked_up == [10]
    assert ids(found.at([39])) == ["10.3"]
    assert found.position("r1.1.t9.0.1") == 33


def test_it_stays_what_it_was_when_the_run_grows(tmp_path):
    live = writer(tmp_path)
    for step in range(1, 11):
        live.write("train", [one(step, index) for index in range(4)])
    run = open_run(tmp_path)
    found = run.rollouts()
    live.write("train", [one(11, index) for index in range(4)])
    live.close()
    assert len(found) == len(ids(found)) == 40
    run.refresh()
    assert len(run.rollouts()) == 44
