"""On 80 columns and 24 lines, what a run earned by each reward function stands on the screen without a key."""

from __future__ import annotations

import pytest
from reading import called, one, write
from viewer import look

from rollout_plugins.show.text import share

NAMES = ("correct", "length_bonus", "polite")
CALLS = {1: 35, 2: 11, 3: 0}


@pytest.fixture(scope="module")
def hack(tmp_path_factory):
    """The total rises while `correct` falls to 0, and the tool is abandoned."""
    rollouts = []
    for step, correct in ((1, 0.9), (2, 0.4), (3, 0.0)):
        for index in range(4):
            rewards = {"correct": correct, "length_bonus": 2.0 * step, "polite": 0.5}
            calls = [called("price", "error" if n % 3 else "ok") for n in range(CALLS[step] if index == 0 else 0)]
            said = ({"role": "assistant", "content": f"Reply {index}"},)
            rollouts.append(
                one(
                    step,
                    index,
                    rewards=rewards,
                    reward=sum(rewards.values()),
                    tool_calls=tuple(calls),
                    completion=said,
                )
            )
    return write(tmp_path_factory.mktemp("hack"), rollouts, reward_names=NAMES)


def test_a_function_that_falls_while_the_total_rises_is_on_the_first_screen(hack):
    async def scenario(eye):
        await eye.sees("reward 3.4 → 6.5", "correct 0.9 → 0.0", "length_bonus 2.0 → 6.0")
        head = next(line for line in eye.lines if "rollouts" in line and "step" in line and "cut off" in line)
        assert head.split()[:5] == ["step", "rollouts", "reward", "correct", "length_bo…"]

    look(hack, scenario)


def test_failed_calls_are_told_with_their_number(hack):
    async def scenario(eye):
        await eye.sees("tool calls that failed 66% of 35 → no calls")

    look(hack, scenario)


def test_functions_and_answers_stand_before_what_all_were_asked(hack):
    async def scenario(eye):
        await eye.sees("correct")
        await eye.press("a")
        await eye.sees("answered", "Reply 0")
        head = next(line for line in eye.lines if "grp" in line)
        assert head.split()[3:8] == ["reward", "correct", "length_bo…", "polite", "answered"]

    look(hack, scenario)


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (24, 35, "69% of 35"),
        (1, 9, "1 of 9"),
        (0, 10, "0% of 10"),
        (0, 0, "—"),
        (None, 5, "—"),
        (2, 2000, "0% of 2,000"),
    ],
)
def test_a_share_says_of_how_many_and_of_a_handful_there_is_none(part, whole, shown):
    assert share(part, whole) == shown
