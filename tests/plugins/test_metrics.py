"""Numbers about rollouts that people could not see before."""

from __future__ import annotations

import math

import pytest
from hostile import batches
from hypothesis import given
from rollout_hookspecs import Rollout, Run, ToolCall

from examples import thorough
from rollout_plugins.content.numbers import finite
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.plugins.statistics import correlation, mean, quantile, spread


def said(text, i=0, **fields):
    return Rollout(id=f"r{i}", completion=({"role": "assistant", "content": text},), **fields)


def look(rollouts, plugin=None):
    return (plugin or Metrics("all")).rollout_metrics(rollouts)


def test_shares_of_truncated_empty_and_repeated_rollouts_and_turns():
    call = {"function": {"name": "f", "arguments": {}}}
    rollouts = [
        said("x", finish="length"),
        said("x"),
        said(" \n"),
        Rollout(
            id="c",
            tool_calls=(ToolCall(name="f", arguments={}),),
            completion=(
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "content": "1"},
                {"role": "assistant", "content": "y"},
            ),
        ),
    ]
    figures = look(rollouts)
    assert figures["truncated"] == 0.25
    assert figures["empty"] == 0.25
    assert figures["duplicated"] == 0.25
    assert figures["turns"] == 1.25


def test_groups_without_any_spread_and_the_spread_inside_groups():
    rewards = [
        (0, 1.0, 10),
        (0, 1.0, 30),
        (1, 0.0, 5),
        (1, 1.0, 5),
        (2, None, 7),
        (2, 1.0, 7),
        (3, float("nan"), None),
    ]
    figures = look([said(str(i), i, group=g, reward=r, completion_tokens=t) for i, (g, r, t) in enumerate(rewards)])
    assert figures["groups/no_spread"] == 0.5
    assert figures["groups/reward_spread"] == 0.25
    assert figures["groups/length_spread"] == pytest.approx(10 / 3)


def test_correlations():
    rollouts = [
        said(
            str(i),
            i,
            reward=float(i),
            completion_tokens=10 * i,
            rewards={"up": float(i), "down": -float(i), "flat": 1.0},
        )
        for i in range(5)
    ]
    figures = look(rollouts)
    assert figures["correlation/length_reward"] == pytest.approx(1)
    assert figures["correlation/up"] == pytest.approx(1)
    assert figures["correlation/down"] == pytest.approx(-1)
    assert "correlation/flat" not in figures
    assert not any(
        name.startswith("correlation/o") for name in look([said("a", rewards={"only": 1.0}, reward=1.0)] * 4)
    )


def test_variety_of_words():
    figures = look([said("a b a b a b a b a b"), said("c d")])
    assert figures["text/distinct_1"] == 4 / 12
    assert figures["text/distinct_2"] == 3 / 10
    assert figures["text/repetition"] == pytest.approx(5 / 7)
    assert "text/repetition" not in look([said("short")])


def calls(**states):
    return tuple(
        ToolCall(name=name, arguments={}, status=status, seconds=seconds)
        for name, each in states.items()
        for status, seconds in each
    )


def test_tools_overall_and_each():
    plugin = Metrics("all")
    plugin.on_run_start(Run(id="r", tools=({"type": "function", "function": {"name": "search"}}, {"name": "idle"})))
    made = calls(
        search=[("ok", 0.1), ("error", 0.2), ("not_run", None), ("ok", 0.3)],
        made_up=[("unknown", None)],
        also_made_up=[("ok", 1.0)],
    )
    figures = look([said("a", tool_calls=made), said("b")], plugin)
    assert figures["tools/calls"] == 3
    assert figures["tools/failed"] == pytest.approx(2 / 6)
    assert figures["tools/unknown"] == pytest.approx(1 / 6)
    assert figures["tools/not_run"] == pytest.approx(1 / 6)
    assert figures["tools/search/calls"] == 2
    assert figures["tools/search/failed"] == 0.25
    assert figures["tools/search/seconds_p50"] == 0.2
    assert figures["tools/search/seconds_p95"] == 0.3
    assert not any("made_up" in name for name in figures)
    assert look([said("a")], plugin)["tools/calls"] == 0
    assert not any(name.startswith("tools") for name in look([said("a")]))


def test_tool_names_that_the_model_invents_cannot_flood_the_log():
    made = calls(
        **{f"tool_{i}": [("ok", None)] for i in range(500)}, **{"a b\n": [("ok", None)], "x" * 99: [("ok", None)]}
    )
    names = {name.split("/")[1] for name in look([said("a", tool_calls=made)]) if name.count("/") == 2}
    assert len(names) == 50
    assert all(name.startswith("tool_") for name in names)


def test_invalid_tool_names_have_no_figures_even_if_the_tools_are_unknown():
    made = calls(search=[("ok", None)], serach=[("unknown", None)])
    figures = look([said("a", tool_calls=made)])
    assert figures["tools/search/calls"] == 1
    assert figures["tools/unknown"] == 0.5
    assert not any("serach" in name for name in figures)


def test_an_empty_batch_has_no_figures():
    assert look([]) == {}


@thorough
@given(batches)
def test_anything_survives_and_every_figure_is_a_finite_number(batch):
    for name, value in look(batch).items():
        assert isinstance(name, str)
        assert math.isfinite(value)


def test_numbers_are_finite_or_not_there():
    assert [finite(value) for value in (1, 1.5, True, None, "1", float("nan"), float("inf"), 10**400)] == [
        1.0,
        1.5,
        *[None] * 6,
    ]
    assert mean([]) is None
    assert spread([1e308, -1e308]) is not None
    assert spread([1.0]) is None
    assert correlation([(1.0, 2.0)] * 9) is None
    assert correlation([(1e300, 1e300), (-1e300, -1e300), (0, 0)]) == pytest.approx(1)
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0], 0.95) == 3.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"log": "most"}, ["log='most' is not one of few, all"]),
    ],
)
def test_bad_options_give_one_error_that_names_them_all(options, named):
    with pytest.raises(SetupError) as error:
        Metrics(**options)
    assert all(text in str(error.value) for text in named)


def test_the_share_of_rollouts_with_a_reward_that_is_not_finite():
    nan, inf, fine = float("nan"), float("inf"), {"correct": 1.0, "brief": 0.5}
    given = [fine, {**fine, "correct": nan}, {**fine, "correct": -inf}, fine]
    rollouts = [said(str(i), i, reward=sum(r.values()), rewards=r) for i, r in enumerate(given)]
    assert look(rollouts)["rewards/not_finite"] == 0.5
    assert look([said("x", reward=-inf), said("y", 1, reward=1.0)])["rewards/not_finite"] == 0.5
