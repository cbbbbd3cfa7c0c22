"""At most so many of each step, worth reading, with the reason."""

from __future__ import annotations

import logging
import random

import pytest
from hostile import batches
from hypothesis import given
from hypothesis import strategies as st
from rollout_hookspecs import Rollout, Run, Step

from examples import thorough
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.cap import Cap
from rollout_plugins.plugins.strategies import STRATEGIES

STEP = Step(step=1)


def batch(rewards, size=1, **fields):
    return [
        Rollout(id=f"r{i}", index=i, group=i // size, group_size=size, reward=reward, **fields)
        for i, reward in enumerate(rewards)
    ]


def ids(rollouts):
    return [int(rollout.id[1:]) for rollout in rollouts]


def errored(rollouts, *numbers):
    from dataclasses import replace

    return [replace(r, error="boom") if i in numbers else r for i, r in enumerate(rollouts)]


def test_fewer_than_the_cap_are_all_kept():
    kept = Cap().select_rollouts(batch([1.0, 2.0]), STEP)
    assert ids(kept) == [0, 1]


def test_groups_stay_whole_and_hold_the_best_and_the_worst():
    rewards = [0.5] * 32
    rewards[9], rewards[22] = 1.0, 0.0
    plugin = Cap(16)
    kept = plugin.select_rollouts(batch(rewards, size=4), STEP)
    groups = {rollout.group for rollout in kept}
    assert len(kept) == 16
    assert {9 // 4, 22 // 4} <= groups
    assert len(groups) == 4
    reasons = {r.id: r.marks["cap"] for r in kept}
    assert reasons["r9"] == "best of the step; 16 of 32 kept"
    assert reasons["r22"] == "worst of the step; 16 of 32 kept"
    assert reasons["r8"] == "in the group of the best of the step; 16 of 32 kept"
    assert "its group was drawn at random; 16 of 32 kept" in reasons.values()
    assert set(plugin.skip_reasons) == {f"r{i}" for i in range(32)} - set(reasons)
    assert set(plugin.skip_reasons.values()) == {"over 16 per step; 16 of 32 kept"}


def test_without_a_cut_no_rollout_is_marked():
    rollouts = batch([1.0, 0.0, 0.5, 0.5])
    plugin = Cap(4)
    assert plugin.select_rollouts(rollouts, STEP) == list(rollouts)
    assert plugin.skip_reasons == {}


def test_rollouts_with_errors_come_first():
    rollouts = errored(batch([float(i) for i in range(32)], size=4), 13)
    kept = Cap(12).select_rollouts(rollouts, STEP)
    assert {r.group for r in kept} == {3, 0, 7}
    assert {r.id: r.marks["cap"].split(";")[0] for r in kept if r.group == 3} == {
        "r12": "in a group with an error",
        "r13": "errored",
        "r14": "in a group with an error",
        "r15": "in a group with an error",
    }


def test_many_errors_leave_room_for_the_best_and_the_worst():
    rollouts = errored(batch([float(i) for i in range(64)]), *range(10, 50))
    kept = ids(Cap(8).select_rollouts(rollouts, STEP))
    assert len(kept) == 8
    assert {0, 63} < set(kept)
    assert sum(10 <= i < 50 for i in kept) == 6


def test_a_group_larger_than_the_cap_is_shown_in_part():
    rollouts = errored(batch([float(i) for i in range(32)], size=32), 7)
    kept = ids(Cap(4).select_rollouts(rollouts, STEP))
    assert len(kept) == 4
    assert {7, 0, 31} < set(kept)


def test_the_best_and_the_worst_come_alone_if_their_groups_do_not_fit():
    rollouts = errored(batch([float(i) for i in range(36)], size=12), 14)
    kept = ids(Cap(16).select_rollouts(rollouts, STEP))
    assert kept == [0, *range(12, 24), 35]


def test_top_bottom():
    rewards = [3.0, None, 1.0, float("nan"), 5.0, 2.0, 4.0]
    plugin = Cap(strategy="top_bottom", k=2)
    kept = plugin.select_rollouts(batch(rewards), STEP)
    assert ids(kept) == [2, 4, 5, 6]
    assert [r.marks["cap"].split(";")[0] for r in kept] == [
        "number 1 from the bottom",
        "number 1 from the top",
        "number 2 from the bottom",
        "number 2 from the top",
    ]
    assert ids(Cap(1, strategy="top_bottom").select_rollouts(batch(rewards), STEP)) == [4]


def test_top_bottom_never_gives_the_same_rollout_twice():
    for count in range(1, 8):
        kept = Cap(strategy="top_bottom", k=3).select_rollouts(batch([1.0] * count), STEP)
        assert len(set(ids(kept))) == len(kept) == min(count, 6)


def test_first_and_random():
    rollouts = batch([float(i) for i in range(50)])
    assert ids(Cap(3, strategy="first").select_rollouts(rollouts, STEP)) == [0, 1, 2]
    drawn = [ids(Cap(5, strategy="random", seed=seed).select_rollouts(rollouts, STEP)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    other = ids(Cap(5, strategy="random", seed=1).select_rollouts(rollouts, Step(step=2)))
    assert other != drawn[0]


def test_global_random_numbers_are_not_touched():
    state = random.getstate()
    for strategy in STRATEGIES:
        Cap(2, strategy=strategy).select_rollouts(batch([1.0] * 9, size=3), STEP)
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("key", "best"),
    [
        ("reward", 0),
        ("advantage", 1),
        ("style", 2),
        (lambda rollout: len(rollout.completion), 3),
        ("completion_tokens", 4),
    ],
)
def test_key_is_a_field_a_reward_name_or_a_function(key, best):
    rollouts = [
        Rollout(
            id=f"r{i}",
            reward=float(i == 0),
            advantage=float(i == 1),
            rewards={"style": float(i == 2)} if i else {},
            completion=({},) * (i == 3),
            completion_tokens=int(i == 4),
        )
        for i in range(5)
    ]
    assert ids(Cap(1, strategy="top_bottom", key=key).select_rollouts(rollouts, STEP)) == [best]


def test_a_key_that_fails_ranks_nothing_and_warns_once(caplog):
    plugin = Cap(2, key=lambda rollout: 1 / 0)
    assert len(plugin.select_rollouts(batch([1.0] * 5), STEP)) == 2
    assert len([record for record in caplog.records if "key failed" in record.message]) == 1


def test_an_unknown_key_warns_at_the_start(caplog):
    plugin = Cap(key="stile")
    with caplog.at_level(logging.WARNING):
        plugin.on_run_start(Run(id="r", reward_names=("style", "length")))
    assert "'stile' is not a reward function of this run (style, length)" in caplog.text


def test_a_function_chooses_and_cannot_exceed_the_cap():
    plugin = Cap(3, strategy=lambda rollouts, places: [*reversed(rollouts), *rollouts, Rollout(id="foreign")])
    assert ids(plugin.select_rollouts(batch([1.0] * 9), STEP)) == [6, 7, 8]


@pytest.mark.parametrize(
    "bad", [lambda rollouts, places: 1 / 0, lambda rollouts, places: None, list, lambda r, p: [1]]
)
def test_a_strategy_function_that_fails_does_not_lift_the_cap(bad, caplog):
    assert len(Cap(3, strategy=bad).select_rollouts(batch([1.0] * 9), STEP)) == 3
    assert "the strategy function failed" in caplog.text


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_streamed_step_stays_within_the_cap(strategy):
    plugin = Cap(6, strategy=strategy)
    rollouts = batch([float(i % 7) for i in range(40)], size=2)
    kept = [r for i in range(0, 40, 2) for r in plugin.select_rollouts(rollouts[i : i + 2], Step(step=3))]
    assert 0 < len(kept) <= 6
    assert len({r.id for r in kept}) == len(kept)
    assert plugin.select_rollouts(batch([1.0, 2.0]), Step(step=4))
    assert plugin.select_rollouts(batch([1.0, 2.0]), Step(step=3, split="eval"))


def test_a_streamed_rollout_is_kept_only_if_it_is_among_the_chosen_so_far():
    plugin = Cap(6, strategy="top_bottom", k=1)
    kept = [ids(plugin.select_rollouts([r], Step(step=1))) for r in batch([5.0, 1.0, 3.0, 9.0, 4.0])]
    assert kept == [[0], [1], [], [3], []]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_share_the_cap(strategy):
    total = 0
    for rank in range(3):
        step = Step(step=1, rank=rank, world_size=3, gathered=False)
        total += len(Cap(8, strategy=strategy).select_rollouts(batch([1.0] * 20), step))
    assert total == 8
    together = Step(step=1, rank=0, world_size=3, gathered=True)
    assert len(Cap(8, strategy=strategy).select_rollouts(batch([1.0] * 60), together)) == 8


def test_the_same_rollouts_submitted_again_are_chosen_again():
    plugin = Cap(4)
    rollouts = batch([float(i) for i in range(12)])
    assert ids(plugin.select_rollouts(rollouts, STEP)) == ids(plugin.select_rollouts(rollouts, STEP))


def test_seen_and_kept_are_metrics():
    plugin = Cap(4)
    assert plugin.rollout_metrics(STEP) is None
    plugin.select_rollouts(batch([1.0] * 10), STEP)
    assert plugin.rollout_metrics(Step(step=1, split="eval")) is None
    assert plugin.rollout_metrics(STEP) == {"cap/seen": 10, "cap/kept": 4}
    assert plugin.rollout_metrics(STEP) is None


@thorough
@given(
    batches,
    st.integers(1, 5),
    st.sampled_from([*STRATEGIES, lambda r, p: r]),
    st.sampled_from(["reward", "a", "group"]),
)
def test_anything_survives_and_the_cap_holds(rollouts, places, strategy, key):
    plugin = Cap(places, strategy=strategy, key=key)
    kept = [rollout.id for rollout in plugin.select_rollouts(rollouts, STEP)]
    assert len(kept) == len(set(kept)) <= places
    assert kept == [r.id for r in rollouts if r.id in kept]
    assert set(kept) | set(plugin.skip_reasons) == {r.id for r in rollouts}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_per_step": 0}, ["max_per_step=0"]),
        ({"strategy": "best"}, ["strategy='best'", "groups, top_bottom, random, first"]),
        ({"key": "prompt"}, ["key='prompt'", "completion_tokens"]),
        ({"k": 2}, ["k is only for strategy='top_bottom'"]),
        ({"seed": "x", "max_per_step": "16", "key": None}, ["seed='x'", "max_per_step='16'", "key=None"]),
    ],
)
def test_bad_options_give_one_error_that_names_them_all(options, named):
    with pytest.raises(SetupError) as error:
        Cap(**options)
    assert all(text in str(error.value) for text in named)
