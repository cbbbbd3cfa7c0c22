"""Sinks see equal content once; how often it happened is a number."""

from __future__ import annotations

import pytest
from hostile import batches, cycle, deep, picture
from hypothesis import given
from rollout_hookspecs import Rollout, Step

from examples import thorough
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.dedup import Dedup
from rollout_plugins.plugins.images import Images

STEP = Step(step=1)


def said(ident, text, prompt="hi", **fields):
    return Rollout(
        id=ident,
        prompt=({"role": "user", "content": prompt},),
        completion=({"role": "assistant", "content": text},),
        **fields,
    )


def ids(rollouts):
    return [rollout.id for rollout in rollouts]


def test_equal_rollouts_are_shown_once_and_the_others_have_a_reason():
    plugin = Dedup()
    kept = plugin.select_rollouts([said("a", "x"), said("b", "x"), said("c", "y"), said("d", "x", prompt="ho")], STEP)
    assert ids(kept) == ["a", "c", "d"]
    assert plugin.skip_reasons == {"b": "same rollout as a of this step"}
    assert kept[0].marks == {"dedup": "stands for 1 more with the same rollout"}
    assert kept[1].marks == {}


def test_by_completion_the_prompt_does_not_matter():
    rollouts = [said("a", "x"), said("b", "x", prompt="ho"), said("c", "y")]
    assert ids(Dedup("completion").select_rollouts(rollouts, STEP)) == ["a", "c"]


def test_by_prompt_whole_groups_stay_together():
    rollouts = [said("a", "1", group=0), said("b", "2", group=0), said("c", "3", group=1), said("d", "4", group=1)]
    assert ids(Dedup("prompt").select_rollouts(rollouts, STEP)) == ["a", "b"]
    assert ids(Dedup("prompt", siblings=True).select_rollouts(rollouts, STEP)) == ["a"]


def test_best_keeps_the_highest_reward_and_numbers_beat_none_and_nan():
    rollouts = [
        said(ident, "x", reward=reward)
        for ident, reward in zip("abcdef", [None, float("nan"), 1, 3.0, 3.0, True], strict=True)
    ]
    assert ids(Dedup(keep="best").select_rollouts(rollouts, STEP)) == ["d"]
    assert ids(Dedup(keep="first").select_rollouts(rollouts, STEP)) == ["a"]


def test_the_window_counts_steps_and_keeps_train_and_eval_apart():
    plugin = Dedup(window=3)
    assert ids(plugin.select_rollouts([said("a", "x")], Step(step=10))) == ["a"]
    assert ids(plugin.select_rollouts([said("b", "x")], Step(step=10, split="eval"))) == ["b"]
    assert plugin.select_rollouts([said("c", "x")], Step(step=13)) == []
    assert plugin.skip_reasons == {"c": "same rollout as a of step 10"}
    assert ids(plugin.select_rollouts([said("d", "x")], Step(step=14))) == ["d"]
    assert plugin.select_rollouts([said("e", "x")], Step(step=15)) == []


def test_without_a_window_a_later_step_shows_it_again_and_a_later_batch_does_not():
    plugin = Dedup()
    assert ids(plugin.select_rollouts([said("a", "x")], Step(step=1))) == ["a"]
    assert plugin.select_rollouts([said("b", "x")], Step(step=1)) == []
    assert ids(plugin.select_rollouts([said("c", "x")], Step(step=2))) == ["c"]


def test_best_shows_a_better_one_again():
    plugin = Dedup(keep="best", window=5)
    plugin.select_rollouts([said("a", "x", reward=1)], Step(step=1))
    assert plugin.select_rollouts([said("b", "x", reward=1)], Step(step=2)) == []
    assert ids(plugin.select_rollouts([said("c", "x", reward=2)], Step(step=3))) == ["c"]


def test_the_same_rollouts_submitted_again_are_chosen_again():
    plugin = Dedup(window=5)
    rollouts = [said("a", "x"), said("b", "x")]
    assert ids(plugin.select_rollouts(rollouts, STEP)) == ids(plugin.select_rollouts(rollouts, STEP)) == ["a"]


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("rollout_plugins.plugins.dedup.MEMORY", 10)
    plugin = Dedup(window=10**6)
    for step in range(50):
        plugin.select_rollouts([said(f"{step}", str(step))], Step(step=step))
    assert plugin.select_rollouts([said("new", "49")], Step(step=50)) == []
    assert ids(plugin.select_rollouts([said("old", "0")], Step(step=50))) == ["old"]
    assert max(map(len, plugin._shown.values())) <= 10


def test_hashes_outside_the_window_are_forgotten():
    plugin = Dedup(window=2)
    for step in range(50):
        plugin.select_rollouts([said(f"{step}", str(step))], Step(step=step))
    assert len(plugin._shown["train"]) == 3


def test_images_count_by_their_pixels_with_and_without_the_images_plugin(tmp_path):
    def shown(ident, color):
        return Rollout(id=ident, prompt=({"role": "user", "content": [{"type": "image", "image": picture(color)}]},))

    rollouts = [shown("a", 1), shown("b", 1), shown("c", 2)]
    assert ids(Dedup("prompt", siblings=True).select_rollouts(rollouts, STEP)) == ["a", "c"]
    images = Images("strip")
    without = [images.on_rollout(rollout) for rollout in rollouts]
    assert ids(Dedup("prompt", siblings=True).select_rollouts(without, STEP)) == ["a", "c"]


def test_key_order_does_not_matter_and_types_do():
    def asking(ident, arguments):
        call = {"function": {"name": "f", "arguments": arguments}}
        return Rollout(id=ident, completion=({"role": "assistant", "tool_calls": [call]},))

    same = [asking("a", {"x": 1, "y": 2}), asking("b", {"y": 2, "x": 1})]
    different = [asking("c", {"x": 1.0, "y": 2}), asking("d", {"x": "1", "y": 2}), asking("e", {"x": True, "y": 2})]
    assert ids(Dedup().select_rollouts([*same, *different], STEP)) == ["a", "c", "d", "e"]


def test_the_share_of_duplicates_is_a_metric():
    rollouts = [said("a", "x"), said("b", "x"), said("c", "x"), said("d", "y")]
    assert Dedup().rollout_metrics(rollouts) == {"dedup/duplicates": 0.5, "dedup/different": 2}
    assert Dedup("prompt").rollout_metrics(rollouts) == {"dedup/duplicates": 0, "dedup/different": 1}
    assert Dedup().rollout_metrics([]) is None


@thorough
@given(batches)
def test_anything_survives(batch):
    for plugin in (Dedup(), Dedup("prompt"), Dedup("completion", keep="best", window=2)):
        kept = plugin.select_rollouts(batch, STEP)
        assert set(ids(kept)) | set(plugin.skip_reasons) == set(ids(batch))
        assert set(ids(kept)).isdisjoint(plugin.skip_reasons)
        plugin.rollout_metrics(batch)


def test_cycles_and_depth_survive():
    rollouts = [said("a", cycle()), said("b", cycle()), said("c", deep()), said("d", deep())]
    assert ids(Dedup().select_rollouts(rollouts, STEP)) == ["a", "c"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"by": "text"}, ["by='text'", "prompt, completion, rollout"]),
        ({"window": -1, "keep": "last"}, ["window=-1", "keep='last'", "first, best"]),
        ({"siblings": True}, ["siblings=True", "by='prompt'"]),
        ({"siblings": 1, "window": 1.5}, ["siblings=1", "window=1.5"]),
    ],
)
def test_bad_options_give_one_error_that_names_them_all(options, named):
    with pytest.raises(SetupError) as error:
        Dedup(**options)
    assert all(text in str(error.value) for text in named)
