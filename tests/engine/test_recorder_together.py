"""Processes, threads and tasks that record together share a run and never an id."""

import asyncio
import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from loops import Slow, recorder_in, row, work
from processes import run_worker

from rollout_plugins import open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.reading.find_runs import find_runs


def assert_one_run_of_two_ranks(folder):
    run = open_run(folder)
    assert len(find_runs(folder)) == 1
    found = list(run.rollouts(step=1))
    assert len({r.id for r in run.rollouts()}) == len(run) == 16
    assert sorted(r.index for r in found) == list(range(8))
    groups = {r.group: [x.rank for x in found if x.group == r.group] for r in found}
    assert sorted(map(tuple, groups.values())) == [(0, 0), (0, 0), (1, 1), (1, 1)]
    return run


@pytest.mark.slow
def test_processes_of_torchrun_share_a_run_without_a_process_group(tmp_path):
    run_worker("recorder", "ranks", tmp_path, ranks=2)
    assert_one_run_of_two_ranks(tmp_path)


@pytest.mark.slow
def test_processes_of_anything_else_share_a_run_by_its_name_also_when_they_go_on(tmp_path):
    for _ in range(2):
        children = [work("ranks", tmp_path, RANK=str(n), WORLD_SIZE="2", RUN_NAME="exp") for n in range(2)]
        said = sorted(child.communicate()[0].split() for child in children)
        assert said == [["exp", "0", "2"], ["exp", "1", "2"]]
    run = open_run(tmp_path)
    assert {(r.attempt, r.rank) for r in run.rollouts()} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert len({r.id for r in run.rollouts()}) == len(run) == 32


def open_and_record_together(folder, *environments):
    children = [work("shared", folder, **environment) for environment in environments]
    assert [child.stdout.readline() for child in children] == ["open\n"] * len(children)
    for child in children:
        child.communicate("\n")
    assert [child.returncode for child in children] == [0] * len(children)


@pytest.mark.slow
def test_processes_that_nobody_numbered_never_share_an_id(tmp_path):
    open_and_record_together(tmp_path, {}, {})
    run = open_run(tmp_path)
    assert len({r.id for r in run.rollouts()}) == len(run) == 16
    assert {r.attempt for r in run.rollouts()} == {1, 2}
    assert [(a["attempt"], a["rollouts"], a["ended"] is None) for a in run.attempts] == [
        (n, {"train": 8}, False) for n in (1, 2)
    ]


def test_writers_that_go_on_together_do_not_hide_each_others_rollouts(tmp_path):
    with recorder_in(tmp_path, run_id="exp") as recorder:
        recorder.record(1, [row("before")])
        recorder.record(2, [row("done again")])
    both = [recorder_in(tmp_path, run_id="exp", resumed_from=1) for _ in range(2)]
    for number, recorder in enumerate(both):
        recorder.record(2, [row(f"from {number}")])
    for recorder in both:
        recorder.close()
    run = open_run(tmp_path / "runs")
    assert [r.completion[0]["content"] for r in run.rollouts()] == ["before", "from 0", "from 1"]
    assert len({r.id for r in run.rollouts(superseded=True)}) == 4


@pytest.mark.slow
def test_processes_may_be_numbered_by_whoever_starts_them(tmp_path):
    open_and_record_together(tmp_path, {"GIVEN": "0"}, {"GIVEN": "1"})
    assert {(r.attempt, r.rank) for r in assert_one_run_of_two_ranks(tmp_path).rollouts()} == {(1, 0), (1, 1)}


def test_processes_that_cannot_agree_say_how_they_could(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        recorder_in(tmp_path).close()
    assert "pass the same run_id in all of them" in caplog.text
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(SetupError, match="RANK is 'first' in the environment"):
        recorder_in(tmp_path)


@pytest.mark.parametrize("sync", [False, True])
def test_threads_may_record_at_the_same_time(tmp_path, sync):
    with recorder_in(tmp_path, sync=sync) as recorder:

        def loop(number):
            for step in range(20):
                recorder.record(step, [row(f"{number}.{step}.{n}") for n in range(3)])

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(loop, range(6)))
    found = list(open_run(tmp_path / "runs").rollouts())
    assert len({r.id for r in found}) == len(found) == 6 * 20 * 3
    assert len({r.completion[0]["content"] for r in found}) == len(found)
    for r in found:
        assert r.completion[0]["content"].split(".")[1:] == [str(r.step), str(r.index)]


def test_asyncio_records_from_many_tasks_and_closes(tmp_path):
    async def loop():
        async with recorder_in(tmp_path) as recorder:

            async def sample(number):
                await asyncio.sleep(0.01 * (number % 3))
                await recorder.arecord(number, [row(str(number))], policy_step=number)

            await asyncio.gather(*(sample(number) for number in range(30)))
            assert await recorder.aflush()

    asyncio.run(loop())
    assert len(open_run(tmp_path / "runs")) == 30


def test_a_full_queue_drops_the_newest_batch_whole_and_never_waits(tmp_path):
    slow = Slow()
    with recorder_in(tmp_path, slow) as recorder:
        recorder._pipeline._worker._limit = 10_000
        for step in range(1, 11):
            recorder.record(step, [row("x" * 3000)])
        assert not slow.gave_up
        slow.go.set()
    run = open_run(tmp_path / "runs")
    assert 1 <= len(run) < 10
    assert run.health.drops == {"queue_full": 10 - len(run)}


def test_with_block_the_event_loop_goes_on_while_the_queue_is_full(tmp_path):
    slow = Slow()
    ticks = []

    async def loop():
        async with recorder_in(tmp_path, slow, on_full="block") as recorder:
            recorder._pipeline._worker._limit = 10_000
            tasks = [asyncio.create_task(recorder.arecord(step, [row("x" * 6000)])) for step in range(1, 5)]
            for _ in range(20):
                ticks.append(sum(task.done() for task in tasks))
                await asyncio.sleep(0.01)
            slow.go.set()
            await asyncio.gather(*tasks)

    asyncio.run(loop())
    assert len(ticks) == 20
    assert ticks[-1] < 4
    run = open_run(tmp_path / "runs")
    assert (len(run), run.health.drops) == (4, {})


def test_recording_costs_the_loop_no_more_calls_than_a_copy(tmp_path):
    slow = Slow()
    batch = [row([{"role": "assistant", "content": "x" * 2000}] * 8) for _ in range(256)]
    calls = []
    with recorder_in(tmp_path, slow) as recorder:
        recorder.record(1, batch)
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, function: calls.append(event.endswith("call")))
        recorder.record(2, batch)
        sys.setprofile(before)
        slow.go.set()
    assert sum(calls) < 40 * len(batch)
