"""docs/how-to/own-loop.md says what the code says: fields, what is read of each framework, examples that run."""

import inspect
import re
from pathlib import Path

import pytest
from shape_rig import Completion, Episode, Trajectory, TrajectoryGroup, Transition

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.engine import loop_rollouts as rows
from rollout_plugins.shapes import areal, torchforge, verl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "own-loop.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))


def named(section):
    """The names in the first column of a section's table."""
    cells = re.findall(r"^\| (`.+?`) \| ", SECTIONS[section], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def fields_of(*kinds):
    return {name for kind in kinds for name in kind.__dataclass_fields__}


CODE = {
    "Your own loop": set(rows.KEYS),
    "AReaL": {*areal.READ, "logprobs"},
    "tinker-cookbook": fields_of(TrajectoryGroup, Transition),
    "torchforge": {*torchforge.READ, *torchforge.KEPT, *torchforge.PER_TOKEN, "ref_logprobs", "stop_reason"},
    "verl": set(inspect.signature(verl.rollouts).parameters),
}


@pytest.mark.parametrize("section", CODE)
def test_each_table_lists_what_the_code_reads_and_nothing_else(section):
    found = named(section)
    assert len(set(found)) == len(found)
    assert set(found) == CODE[section]


def test_the_classes_the_tests_stand_on_have_what_is_read():
    assert set(torchforge.PER_TOKEN) <= fields_of(Completion)
    assert {"episode_id", "request", "response", "target", "reward_breakdown"} <= fields_of(Episode)
    assert fields_of(Trajectory) == {"transitions"}


def test_the_first_example_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], {})
    run = open_run("runs")
    assert (len(run), run.steps) == (6, [1, 2, 3])
    assert [r.reward for r in run.rollouts(step=1)] == [1.0, 0.0]


def test_every_option_is_explained_in_the_docstring():
    text = inspect.getdoc(RolloutRecorder)
    for name in inspect.signature(RolloutRecorder).parameters:
        assert re.search(rf"^    {name}: ", text, re.MULTILINE), name


def test_every_example_that_is_named_exists():
    named = re.findall(r"`(examples/\w+\.py)`", PAGE)
    assert len(named) == 5
    assert all((ROOT / path).exists() for path in named)
