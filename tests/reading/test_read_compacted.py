"""A run is read while another process joins its files: nothing is missed, nothing healthy is called damaged."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pyarrow.parquet as pq
import pytest
from reading import one, steps, write, writer

from rollout_plugins import open_run
from rollout_plugins.cli.main import main
from rollout_plugins.reading import batch_functions as analysing
from rollout_plugins.reading import query_session as session
from rollout_plugins.reading import small_files as small
from rollout_plugins.store import parts
from rollout_plugins.store import write as writing
from rollout_plugins.store.join_parts import join_parts

SIZE = 100


def compact(folder):
    assert main(["compact", str(folder)]) == 0


@pytest.fixture(params=["small files", "other files"])
def run(tmp_path, monkeypatch, request):
    """A run of many files, read from memory or from the disk."""
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    if request.param == "small files":
        monkeypatch.setattr(small, "MANY", 2)
        monkeypatch.setattr(small, "MOST_BYTES", 1)
    return open_run(write(tmp_path, steps(10, SIZE)))


def every_id():
    return [rollout.id for rollout in steps(10, SIZE)]


def test_a_loop_that_has_begun_gives_every_rollout(run):
    loop = iter(run.rollouts())
    read = [next(loop).id]
    compact(run.dir)
    read += [rollout.id for rollout in loop]
    assert read == every_id()
    assert run.health.damaged == {}


def test_what_was_found_before_is_read_after(run):
    found = run.rollouts(where="reward > 50", order="-reward")
    compact(run.dir)
    assert [rollout.reward for rollout in found] == sorted(
        (rollout.reward for rollout in steps(10, SIZE) if rollout.reward > 50), reverse=True
    )
    assert run.health.damaged == {}


def test_what_was_joined_twice_is_found(run):
    found = run.rollouts()
    compact(run.dir)
    live = writer(run.dir.parent, attempt=2)
    live.write("train", [one(0, 0, attempt=2, generation=-1, id="new")])
    live.close()
    compact(run.dir)
    assert [rollout.id for rollout in found] == every_id()
    assert run.health.damaged == {}


def test_questions_are_answered_from_the_new_files(run):
    before = run.stats()
    compact(run.dir)
    assert run.stats() == before
    assert run.sql("select count(*) as n, count(distinct id) as ids from rollouts").to_pylist() == [
        {"n": 1000, "ids": 1000}
    ]
    assert run.count(search="Answer 77 of step 3") == len(list(run.rollouts(search="Answer 77 of step 3"))) == 1
    assert (run.health.damaged, run.health.unreadable) == ({}, [])


def test_files_that_are_joined_whenever_they_are_listed_do_not_make_a_run_unreadable(tmp_path, monkeypatch):
    """As where a run of very many files is joined group by group while a reader opens them."""
    monkeypatch.setattr(writing, "SEAL_BYTES", 1)
    folder = write(tmp_path, steps(20))
    listed = session.find_parts

    def list_then_join(folder):
        found = listed(folder)
        if len(found) > 10:
            first, second = (part.path for part in found[:2])
            join_parts(folder, first.with_name(f"001-00000-{100 - len(found):06d}.parquet"), [first, second])
        return found

    monkeypatch.setattr(session, "find_parts", list_then_join)
    run = open_run(folder)
    assert (len(run), run.health.damaged) == (80, {})


def test_a_listing_that_a_compaction_overtakes_is_made_again(run, monkeypatch):
    """A folder is listed entry by entry: what appears and goes meanwhile may be in no listing, or in part."""
    before = [part.path for part in parts.find_parts(run.dir)]
    compact(run.dir)
    listings = [before[:3]]

    iterdir = type(run.dir).iterdir

    def list_as_it_was(folder):
        return iter(listings.pop()) if folder.name == "train" and listings else iterdir(folder)

    monkeypatch.setattr(type(run.dir), "iterdir", list_as_it_was)
    assert len(parts.find_parts(run.dir)) == 1


def test_the_hits_of_a_search_are_put_in_order_after_a_refresh(run):
    hits = run.rollouts(search="Answer 7")
    compact(run.dir)
    run.refresh()
    found = run.rollouts(order="-reward").among([hits])
    assert [rollout.id for rollout in found] == [
        rollout.id for rollout in run.rollouts(search="Answer 7", order="-reward")
    ]


def lengths(table):
    return [len(ident) for ident in table["id"].to_pylist()]


def test_a_function_sees_the_rollouts_of_files_that_are_joined_meanwhile(run, monkeypatch):
    class Overtaken(ProcessPoolExecutor):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            compact(run.dir)

    monkeypatch.setattr(analysing, "ProcessPoolExecutor", Overtaken)
    assert run.annotate_by("length", lengths, columns=["id"]) == 1000
    assert run.health.damaged == {}
    assert run.count(where="length.value > 0") == 1000


def test_a_joined_file_says_where_the_rows_of_each_file_begin(run):
    compact(run.dir)
    (joined,) = run.dir.glob("data/*/*.parquet")
    assert b"rollout_plugins.held" in pq.read_schema(joined).metadata
