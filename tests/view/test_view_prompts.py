"""The viewer's list of prompts."""

import pytest
from reading import one, write
from viewer import look

from rollout_plugins import open_run
from rollout_plugins.learn.prompt_list import list_prompts
from rollout_plugins.view.app import Viewer
from rollout_plugins.view.widgets.grid import Grid

pytestmark = pytest.mark.needs(part="learn")
COURSES = {"easy": "111", "lost": "110", "new": "001", "hard": "000"}


@pytest.fixture
def run(tmp_path):
    rows = [
        one(
            step, number, group=number, prompt=({"role": "user", "content": f"the {name} question"},),
            reward=float(course[step - 1]), rewards={"correct": float(course[step - 1])},
        )
        for step in (1, 2, 3)
        for number, (name, course) in enumerate(COURSES.items())
    ]  # fmt: skip
    return open_run(write(tmp_path, rows))


def test_prompts_are_listed_sorted_and_opened_over_time(run):
    async def scenario(eye):
        await eye.press("p")
        await eye.sees("4 prompts", "a pass is reward >= 1: forgotten 1 · stuck 1 · learnt 1 · saturated 1")
        await eye.sees("the hard question", "0%", "stuck", "the easy question", "100%", "saturated", "67%")
        assert eye.app.screen.query_one(Grid).row(0)["question"] == "the hard question"
        await eye.press("s", "enter")
        await eye.sees("one prompt at 3 steps")

    look(run.dir, scenario, prompts=lambda: list_prompts(run), size=(140, 24))


def test_without_the_part_that_lists_them_it_says_so(run):
    async def scenario(eye):
        await eye.press("p")
        assert "is not installed" in eye.said

    assert Viewer(run).prompts is None
    look(run.dir, scenario)
