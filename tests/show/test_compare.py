"""What the viewers share: where conversations part, what changed between texts, and the panels of plugins."""

import sys
import types
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import thorough
from rollout_plugins import Panel, hookimpl
from rollout_plugins.errors import SetupError
from rollout_plugins.reading.panels import PANELS, Panels
from rollout_plugins.show import compare
from rollout_plugins.show.compare import count_shared_turns, first_difference, text_changes
from rollout_plugins.show.conversation import conversation
from rollout_plugins.testing import hostile_rollouts, make_rollout, make_run


def views(*completions, prompt="a question"):
    return [conversation(make_rollout(prompt=prompt, completion=one)) for one in completions]


def test_shared_turns_end_before_the_model_writes():
    assert count_shared_turns(views("yes", "yes")) == 1
    assert count_shared_turns(views("yes", "no")) == 1
    assert count_shared_turns([*views("yes", prompt="one"), *views("yes", prompt="another")]) == 0


def test_conversations_part_at_the_first_turn_that_differs():
    one, same, other = views("yes", "yes", "no")
    assert first_difference(one, same) is None
    assert first_difference(one, other) == 1
    longer = conversation(make_rollout(prompt="a question", completion=[{"role": "assistant", "content": "yes"}] * 2))
    assert first_difference(one, longer) == 2


def test_how_long_a_tool_took_is_not_a_difference():
    one, other = (make_rollout(), make_rollout())
    slow = replace(other, tool_calls=tuple(replace(call, seconds=9.0) for call in other.tool_calls))
    wrong = replace(other, tool_calls=tuple(replace(call, result="43") for call in other.tool_calls))
    assert first_difference(conversation(one), conversation(slow)) is None
    assert first_difference(conversation(one), conversation(wrong)) == 1


def test_places_are_those_of_the_completion():
    view = conversation(make_rollout())
    assert [turn.place for turn in view.turns] == [None, 0, 2]
    assert make_rollout().completion[2]["content"] == view.turns[2].content


def test_words_that_changed():
    assert text_changes("the cat sat down", "the dog sat down") == [
        ("same", "the"), ("removed", " cat"), ("added", " dog"), ("same", " sat down"),
    ]  # fmt: skip
    assert text_changes("", "new") == [("added", "new")]
    assert text_changes("same", "same") == [("same", "same")]
    assert text_changes("", "") == []


@thorough
@given(st.text(alphabet="ab \n\t", max_size=60), st.text(alphabet="ab \n\t", max_size=60))
def test_the_difference_holds_both_texts_whole(before, after):
    changes = text_changes(before, after)
    assert "".join(text for kind, text in changes if kind != "added") == before
    assert "".join(text for kind, text in changes if kind != "removed") == after


def test_long_texts_that_have_nothing_in_common_are_not_compared_word_by_word(monkeypatch):
    compared, changes = [], compare._changes  # whose work grows with the square of the pieces
    monkeypatch.setattr(compare, "_changes", lambda *pieces: compared.extend(map(len, pieces)) or changes(*pieces))
    before = " ".join(f"w{i % 7}" for i in range(200_000))
    after = " ".join(f"w{i % 5}" for i in range(200_000))
    assert text_changes(before, after) == [("removed", before), ("added", after)]
    assert max(compared) <= 2000


def test_a_change_deep_in_a_long_text_is_still_found():
    lines = [f"line {i}\n" for i in range(50_000)]
    changed = [*lines[:25_000], "another\n", *lines[25_001:]]
    assert [kind for kind, _ in text_changes("".join(lines), "".join(changed))] == ["same", "removed", "added", "same"]


class Shows:
    def __init__(self, result):
        self.result = result

    @hookimpl
    def show_rollout(self, rollout):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def shown(*results):
    return Panels([Shows(result) for result in results], autoload=False).of(make_rollout(), make_run())


@pytest.mark.parametrize(
    "result",
    [RuntimeError("no"), ["text"], 3, [Panel(table=3)], [Panel(text=type("Bad", (), {"__str__": None})())]],
    ids=["raises", "text", "a number", "a bad table", "a bad text"],
)
def test_a_plugin_that_fails_says_so_and_the_others_show_theirs(result):
    failed, kept = shown(result, [Panel(title="kept")])
    assert "could not show" in failed.text
    assert failed.title == "shows"
    assert kept.title == "kept"


def test_panels_have_a_size_that_can_be_shown():
    panels = shown([Panel(text="x" * 3_000_000, table=[["y"] * 90] * 2_000)] * (PANELS + 1))
    assert len(panels) == PANELS
    assert len(panels[0].text) == 1_000_000
    assert (len(panels[0].table), len(panels[0].table[0])) == (1_000, 50)


def test_hostile_rollouts_reach_a_plugin_as_they_are():
    panels = Panels([Shows([Panel(title="t")])], autoload=False)
    assert all(panels.of(rollout, make_run())[0].title == "t" for rollout in hostile_rollouts())


def test_a_plugin_can_be_named_by_its_address(monkeypatch):
    module = types.ModuleType("my_panels")
    module.Mine = type("Mine", (), {"show_rollout": hookimpl(lambda self: [Panel(title="mine")])})
    module.Mine.show_rollout.__name__ = "show_rollout"
    monkeypatch.setitem(sys.modules, "my_panels", module)
    assert Panels(["my_panels:Mine"], autoload=False).of(make_rollout(), make_run())[0].title == "mine"
    with pytest.raises(SetupError, match="my_panels:Missing"):
        Panels(["my_panels:Missing"])
