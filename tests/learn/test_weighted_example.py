"""The example trains on weighted prompts."""

import runpy
from pathlib import Path

from rollout_plugins import open_run, runs
from rollout_plugins.learn.prompts import prompts_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "weighted_prompts.py"


def test_the_example_draws_its_second_half_from_the_weights_of_the_first(tmp_path):
    weights = runpy.run_path(str(EXAMPLE))["main"](str(tmp_path), steps=1)
    assert min(weights) == 0.05
    assert len(runs(tmp_path)) == 2
    assert len(prompts_of(open_run(tmp_path), "correct")) <= 20
