"""Numbers people could not see before, and alerts that come once."""

from __future__ import annotations

import logging
import math

import pytest
from hostile import batches
from hypothesis import given
from rollout_hookspecs import Rollout, Run, Step, ToolCall

from examples import thorough
from rollout_plugins.content.numbers import finite
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.plugins.statistics import correlation, mean, quantile, spread


def said(text, i=0, **fields):
    return Rollout(id=f"r{i}", completion=({"role": "assistant", "content": text},), **fields)


def look(rollouts, plugin=None, step=None):
    return (plugin or Metrics("all")).rollout_metrics(rollouts, step or Step(seen=len(rollouts)))


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


def collapsed(count=8):
    return [said("same", i, group=i // 2, reward=1.0) for i in range(count)]


def varied(count=8):
    return [said(f"text {i}", i, group=i // 2, reward=float(i)) for i in range(count)]


def test_collapse_and_missing_signal_alert_once_after_some_steps(caplog):
    told = []
    plugin = Metrics(alert=lambda title, text: told.append((title, text)), collapse=0.8, patience=3)
    alerts = []
    for step in range(10):
        look(collapsed(), plugin, Step(step=step, seen=8))
        alerts += plugin.alerts
    assert alerts == [
        "88% of the rollouts repeat others, 3 steps in a row: the model is collapsing (step 2)",
        "no group had any reward spread, 3 steps in a row: there is nothing to learn from (step 2)",
    ]
    assert told == [("rollouts", text) for text in alerts]
    assert [record.message for record in caplog.records] == alerts
    assert {(record.name, record.levelno) for record in caplog.records} == {("rollout_plugins", logging.WARNING)}


def test_a_good_step_starts_the_count_again_and_eval_does_not_count():
    plugin = Metrics(collapse=0.8, patience=2)
    for batch, split in [
        (collapsed(), "train"),
        (varied(), "train"),
        (collapsed(), "train"),
        *[(collapsed(), "eval")] * 5,
    ]:
        look(batch, plugin, Step(seen=8, split=split))
        assert plugin.alerts == []


def test_a_tool_that_keeps_failing_alerts_once_with_its_counts():
    plugin = Metrics(tool_failure=0.5, patience=2)
    alerts = []
    for step in range(6):
        states = [("error", None), ("error", None), ("ok", None), ("ok", None)]
        look(
            [said(f"text {i}", i, reward=float(i), tool_calls=calls(search=states)) for i in range(2)],
            plugin,
            Step(step=step),
        )
        alerts += plugin.alerts
    assert alerts == ["tool 'search' failed in 8 of its last 16 calls (step 1)"]
    fine = Metrics(tool_failure=0.6, patience=1)
    look([said("a", tool_calls=calls(search=[("error", None), ("ok", None)] * 20))], fine)
    assert fine.alerts == []


def test_an_alert_function_that_fails_affects_no_other(caplog):
    told = []
    plugin = Metrics(alert=[lambda title, text: 1 / 0, lambda title, text: told.append(text)], patience=1)
    look(collapsed(40), plugin)
    assert len(told) == len(plugin.alerts) == 2
    assert "an alert function failed" in caplog.text


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
        ({"alert": 3}, ["alert=3"]),
        ({"alert": ["x"]}, ["alert=['x']"]),
        ({"collapse": 0, "tool_failure": 2, "patience": 0}, ["collapse=0", "tool_failure=2", "patience=0"]),
    ],
)
def test_bad_options_give_one_error_that_names_them_all(options, named):
    with pytest.raises(SetupError) as error:
        Metrics(**options)
    assert all(text in str(error.value) for text in named)


def test_the_first_nan_or_infinite_reward_of_each_function_alerts_once_with_step_and_id(caplog):
    told = []
    plugin = Metrics(alert=lambda title, text: told.append(text))
    plugin.on_run_start(Run(id="r"))
    nan, inf = float("nan"), float("inf")

    def step(number, split, *rewards):
        rollouts = [said(str(i), f"{number}.{i}", reward=sum(r.values()), rewards=r) for i, r in enumerate(rewards)]
        return look(rollouts, plugin, Step(split=split, step=number, seen=len(rollouts)))

    fine = {"correct": 1.0, "brief": 0.5}
    assert step(1, "train", fine, {"correct": 0.0, "brief": 0.1})["rewards/not_finite"] == 0
    assert told == []
    assert (
        step(2, "train", fine, {**fine, "correct": nan}, {**fine, "correct": -inf}, fine)["rewards/not_finite"] == 0.5
    )
    assert step(3, "eval", {**fine, "correct": nan}, {"correct": inf, "brief": inf})["rewards/not_finite"] == 1
    assert [text.partition(";")[0] for text in told] == [
        "reward function 'correct' gave a reward that is NaN, for the first time in rollout r2.1 (train step 2)",
        "reward function 'brief' gave a reward that is infinite, for the first time in rollout r3.1 (eval step 3)",
    ]
    assert [record.getMessage() for record in caplog.records] == told


def test_a_non_finite_reward_that_no_function_explains_alerts_too():
    plugin = Metrics()
    plugin.on_run_start(Run(id="r"))
    look([said("x", reward=float("-inf"))], plugin, Step(split="train", step=4, seen=1))
    (text,) = plugin.alerts
    assert text.startswith("the reward is infinite, for the first time in rollout r0 (train step 4)")
    plugin.on_run_start(Run(id="again"))
    look([said("x", reward=float("-inf"))], plugin, Step(split="train", step=1, seen=1))
    assert len(plugin.alerts) == 1
