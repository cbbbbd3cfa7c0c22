"""A run goes on in the mirror as one run, also from a machine whose disk has nothing of it."""

import shutil

import pytest
from mirrored import answers, recorded
from rig import make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.reading.find_runs import find_runs

pytestmark = pytest.mark.usefixtures("fast_mirror")


def attempts(run):
    return [(attempt["attempt"], attempt["rank"], attempt["rollouts"]) for attempt in run.attempts]


@pytest.mark.slow
def test_a_training_that_resumes_on_an_empty_disk_is_one_run_in_the_mirror(tmp_path):
    there = tmp_path / "there"
    for steps, checkpoint in ((2, None), (4, "checkpoint-2"), (4, "checkpoint-2")):
        trainer = make(tmp_path, max_steps=steps, save_strategy="steps", save_steps=2)
        trainer.add_callback(RolloutPluginCallback(mirror=str(there)))
        trainer.train(resume_from_checkpoint=checkpoint and str(tmp_path / "out" / checkpoint))
        (run,) = find_runs(tmp_path / "out-rollouts")
        shutil.rmtree(run)
    (mirrored,) = find_runs(there)
    run = open_run(mirrored)
    assert [(r.step, r.attempt) for r in run.rollouts()] == [
        (s, 1 if s < 3 else 3) for s in range(1, 5) for _ in range(4)
    ]
    assert attempts(run) == [(1, 0, {"train": 8}), (2, 0, {"train": 8}), (3, 0, {"train": 8})]
    assert not run.health.damaged


def test_a_node_that_lost_its_disk_and_one_that_did_not_stay_one_run_in_the_mirror(tmp_path):
    options = {"mirror": str(tmp_path / "there"), "run_id": "mine", "world_size": 2}
    for rank in (0, 1):
        recorded(tmp_path / f"node{rank}", rank=rank, **options)
    shutil.rmtree(tmp_path / "node1")
    for rank in (1, 0):
        recorded(tmp_path / f"node{rank}", steps=(2, 3), rank=rank, resumed_from=1, **options)
    (mirrored,) = find_runs(tmp_path / "there")
    run = open_run(mirrored)
    assert attempts(run) == [(1, 0, {"train": 8}), (2, 0, {"train": 8}), (1, 1, {"train": 8}), (2, 1, {"train": 8})]
    assert sorted(answers(mirrored)) == sorted(f"answer {s}.{n}" for s in (1, 2, 3) for n in range(4) for _ in (0, 1))
    here = tmp_path / "node1" / "mine"
    assert attempts(open_run(here)) == [(2, 1, {"train": 8})]
    assert main(["pull", str(mirrored), str(here.parent)]) == 0
    assert attempts(open_run(here)) == attempts(run)


def test_attempts_of_one_rank_on_two_disks_are_sent_as_one_run(tmp_path):
    first = recorded(tmp_path / "a", (1, 2), run_id="mine")
    second = recorded(tmp_path / "b", (3,), run_id="mine", resumed_from=2)
    shutil.copytree(second, tmp_path / "a" / "moved")
    assert main(["push", str(tmp_path / "a"), str(tmp_path / "there")]) == 0
    there = open_run(tmp_path / "there")
    assert attempts(there) == attempts(open_run([first, second])) == [(1, 0, {"train": 8}), (2, 0, {"train": 4})]
    assert len(there) == 12
