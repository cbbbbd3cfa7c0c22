"""However a loop with a recorder ends, everything is there; forks and kills are ends too."""

import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from loops import recorder_in, row, work
from store_rig import until

from rollout_plugins import RolloutRecorder, hookimpl, open_run
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.engine.worker import Worker
from rollout_plugins.reading.find_runs import find_runs


def test_the_same_name_goes_on_as_the_next_attempt(tmp_path):
    for attempt, steps in ((1, (1, 2, 3)), (2, (4, 5))):
        with recorder_in(tmp_path, run_id="exp") as recorder:
            assert (recorder.run.id, recorder.run.attempt) == ("exp", attempt)
            for step in steps:
                recorder.record(step, [row(str(attempt))])
    run = open_run(tmp_path / "runs" / "exp")
    assert run.steps == [1, 2, 3, 4, 5]
    with recorder_in(tmp_path, run_id="exp", resumed_from=3) as recorder:
        recorder.record(4, [row("3")])
    run.refresh()
    assert [(r.step, r.completion[0]["content"]) for r in run.rollouts()] == [(1, "1"), (2, "1"), (3, "1"), (4, "3")]
    assert len({r.id for r in run.rollouts(superseded=True)}) == 6
    assert len(find_runs(tmp_path / "runs")) == 1


def test_closing_twice_is_fine_and_what_comes_later_is_not_kept_and_said_once(tmp_path, caplog):
    recorder = recorder_in(tmp_path)
    recorder.record(1, [row()])
    recorder.close()
    recorder.close()
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        recorder.record(2, [row()])
        recorder.record(3, [row()])
    assert caplog.text.count("no longer records; open another one with the same run_id") == 1
    assert recorder.flush()
    assert open_run(tmp_path / "runs").steps == [1]


def test_a_recorder_that_records_nothing_leaves_nothing(tmp_path):
    with recorder_in(tmp_path) as recorder:
        assert recorder.metrics() == {}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("scenario", "code"), [("without_close", 0), ("exception", 1), ("interrupt", -signal.SIGINT), ("light", 0)]
)
def test_however_the_loop_ends_everything_is_there_and_the_run_has_ended(tmp_path, scenario, code):
    child = work(scenario, tmp_path)
    _, errors = child.communicate()
    assert child.returncode == code, errors
    run = open_run(tmp_path)
    assert run.steps == [1, 2, 3, 4, 5]
    assert len(run) == 20
    assert run.attempts[0]["ended"]


@pytest.fixture
def interrupted_in():
    """Ctrl-C for the main thread, as soon as it waits in this function; set once that happened."""
    happened, before, place = threading.Event(), signal.getsignal(signal.SIGUSR1), [None]

    def watch(function):
        def interrupt(number, frame):
            was, place[0] = place[0], (id(frame), frame.f_lasti)
            if was != place[0]:  # it runs; only what waits is asked twice in one place
                return
            while frame is not None and frame.f_code is not function.__code__:
                frame = frame.f_back
            if frame is not None and not happened.is_set():
                happened.set()
                raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, interrupt)
        return happened

    yield watch
    signal.signal(signal.SIGUSR1, before)


class Presses:
    """Holds up the first rollout, and presses Ctrl-C until the main thread feels it."""

    def __init__(self, happened):
        self.happened = happened
        self.goes_on = lambda: True

    @hookimpl
    def on_rollout(self, rollout):
        while not self.happened.wait(0.001):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        until(self.goes_on)


def test_whoever_does_not_wait_for_the_end_is_told_what_that_costs(tmp_path, interrupted_in, caplog):
    plugin = Presses(interrupted_in(Pipeline._close))
    recorder = recorder_in(tmp_path, plugin)
    plugin.goes_on = lambda: recorder._pipeline._worker.current.is_given_up
    for step in range(1, 6):
        recorder.record(step, [row()])
    with pytest.raises(KeyboardInterrupt):
        recorder.close()
    run = ended_run(tmp_path)
    assert (len(run), run.health.drops) == (1, {"not_finished_at_end": 4})
    assert " rollouts are not in the store" in caplog.text
    recorder.close()


def test_a_batch_whose_loop_is_interrupted_while_it_waits_for_room_is_counted(tmp_path, interrupted_in):
    plugin = Presses(interrupted_in(Worker.put))
    with recorder_in(tmp_path, plugin, on_full="block") as recorder:
        recorder._pipeline._worker._limit = 10_000
        steps = map(recorder.record, range(1, 6), [[row("x" * 6000)]] * 5)
        with pytest.raises(KeyboardInterrupt):
            list(steps)
    run = ended_run(tmp_path)
    assert run.health.drops == {"queue_full": 1}
    assert run.steps == list(range(1, len(run) + 1))


def ended_run(folder):
    until(lambda: open_run(folder / "runs").attempts[0]["ended"])
    return open_run(folder / "runs")


def test_nothing_that_training_needs_is_loaded():
    program = "from rollout_plugins import RolloutRecorder as R\nR().close()\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "rollout_plugins.trainers" not in done.stdout.split()
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"torch", "transformers", "trl", "accelerate", "datasets", "wandb", "trackio"} == set()


@pytest.mark.slow
def test_killed_at_any_moment_it_has_kept_what_was_handed_over(tmp_path):
    dice = random.Random(4)
    children = [work("killed", tmp_path / str(number)) for number in range(2)]
    for number, child in enumerate(children):
        first = child.stdout.readline()
        time.sleep(dice.uniform(0, 0.4))
        child.kill()
        rest, errors = child.communicate()
        safe = [int(line) for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
        assert safe, errors
        run = open_run(tmp_path / str(number))
        kept = Counter(run.table(["step"])["step"].to_pylist())
        assert set(safe) <= set(kept)
        assert set(kept.values()) == {4}
        assert run.health.damaged == {}


def test_a_forked_copy_records_nothing_and_harms_nothing(tmp_path):
    child = work("forked", tmp_path)
    _, errors = child.communicate()
    assert child.returncode == 0
    assert "opened by another process" in errors
    run = open_run(tmp_path)
    assert (run.steps, len(run)) == ([1, 2], 8)


def said_by(scenario, folder):
    child = work(scenario, folder)
    try:
        out, errors = child.communicate()
    finally:
        child.kill()
    assert child.returncode == 0, errors
    return out


def test_a_loop_that_forks_after_its_first_batch_goes_on_and_children_record_too(tmp_path):
    seven, theirs = said_by("pool", tmp_path).split()
    assert seven == "7"
    assert len(open_run(theirs)) == 4
    assert open_run(tmp_path / "parent").steps == [1, 2]


def test_a_forked_copy_may_use_all_it_has_inherited_whatever_was_locked(tmp_path):
    assert said_by("locked", tmp_path) == "4 4\n"
    assert len(open_run(tmp_path)) == 4


@pytest.mark.parametrize(("options", "each"), [({"autoload": False}, 1), ({}, 2)])
def test_an_open_run_takes_few_threads(tmp_path, options, each):
    before = threading.active_count()
    recorders = [RolloutRecorder(dir=tmp_path, **options) for _ in range(10)]
    for recorder in recorders:
        recorder.record(1, [{"prompt": "a", "completion": "b"}])
        assert recorder.flush()
    assert threading.active_count() - before <= 10 * each
    for recorder in recorders:
        recorder.close()
    assert len(find_runs(tmp_path)) == 10
