"""A run that keeps the text of few old rollouts, and the numbers of all."""

import pytest
from mirrored import batch

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.remote.mirror import Mirror
from rollout_plugins.remote.retain import Retain


def recorded(folder, steps, *plugins):
    with RolloutRecorder([*plugins, Mirror("memory://sealing", seal_seconds=1e-9)], dir=folder) as recorder:
        for step in steps:
            recorder.record(step, batch(step))
            recorder.record(step, batch(step), split="eval")
            recorder.flush()
    return open_run(recorder.run.dir)


def with_text(run, **filters):
    return [rollout for rollout in run.rollouts(**filters) if rollout.completion]


def test_older_steps_keep_a_sample_of_each_and_all_their_figures(tmp_path):
    plain = recorded(tmp_path / "a", range(1, 11))
    run = recorded(tmp_path / "b", range(1, 11), Retain(last=3, panel=0.0, sample=1))
    assert run.stats() == plain.stats()
    assert [len(with_text(run, split="train", step=step)) for step in range(1, 11)] == [1] * 7 + [4] * 3
    assert len(with_text(run, split="eval")) == 40
    (why,) = {rollout.marks["pruned"] for rollout in run.rollouts() if not rollout.completion}
    assert why == "older than 3 steps, and not in the panel or the sample"


def test_the_panel_is_the_same_prompts_through_the_whole_run(tmp_path):
    rows = [{"prompt": f"question {n}", "completion": "a", "reward": 1.0} for n in range(40)]
    options = Retain(last=0, panel=0.25, sample=0), Mirror("memory://sealing", seal_seconds=1e-9)
    with RolloutRecorder(options, dir=tmp_path) as recorder:
        for step in (1, 2, 3):
            recorder.record(step, rows)
            recorder.flush()
    run = open_run(tmp_path)
    panels = [{rollout.prompt[0]["content"] for rollout in with_text(run, step=step)} for step in (1, 2, 3)]
    assert panels[0] == panels[1] == panels[2]
    assert 3 <= len(panels[0]) <= 20


def test_a_mistake_in_the_options_is_said():
    with pytest.raises(SetupError, match=r"last=-1 is not a whole number of at least 0; panel=2 is not a share"):
        Retain(last=-1, panel=2)
