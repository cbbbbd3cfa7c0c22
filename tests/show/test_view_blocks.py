"""Text as rows of a screen: nothing is lost, nothing is wider than the screen, and what is long folds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from examples import thorough
from rollout_plugins.show.blocks import Block, clean_spans, lay_out, wrap
from rollout_plugins.show.text import clean
from rollout_plugins.view.saving import as_markdown


@thorough
@given(st.text(alphabet=st.sampled_from("ab 日本é\n-語"), max_size=80), st.integers(2, 20))
def test_wrapping_loses_nothing_but_the_spaces_it_breaks_at(text, width):
    rows = [text[start:end] for start, end in wrap(text, width)]
    assert all(cell_len(row) <= width for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert not any("\n" in row for row in rows)


def test_words_are_kept_whole_where_they_fit():
    assert [("one two three")[s:e] for s, e in wrap("one two three", 8)] == ["one two", "three"]
    assert ["日本 語x"[s:e] for s, e in wrap("日本 語x", 5)] == ["日本", "語x"]


@pytest.mark.parametrize("text", ["x" * 1_000_000, "word " * 200_000, "日本 " * 300_000, "\n" * 500_000])
def test_a_megabyte_is_wrapped_whole(text):  # in time that grows with its length; with the square it would be hours
    assert wrap(text, 80)[-1][1] == len(text)


@thorough
@given(st.lists(st.text(max_size=30), max_size=5), st.integers(1, 30))
def test_styles_stay_on_their_characters(parts, width):
    spans = [(clean(part), str(number)) for number, part in enumerate(parts)]
    block = Block("said", spans)
    shown = {style: "".join(t for cells in block.rows(width) for t, s in cells if s == style) for _, style in spans}
    for text, style in spans:
        assert shown[style].replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_a_folded_block_says_how_much_is_missing():
    block = Block("tool", clean_spans("word " * 1000), label="tool", least=2)
    folded = lay_out([block], 60)
    assert len(folded) == 3
    shown = sum(len(row.text[11:]) for row in folded[:2])
    assert abs(5000 - shown - int(folded[2].text.split()[1].replace(",", ""))) <= 4
    block.folded = False
    assert len(lay_out([block], 60)) > 100


def test_little_more_than_the_fold_is_shown_whole():
    block = Block("tool", clean_spans("one\ntwo\nthree"), least=2)
    assert [row.text.strip() for row in lay_out([block], 60)] == ["one", "two", "three"]


def test_code_in_markdown_cannot_leave_its_fence():
    from rollout_plugins.testing import make_rollout

    rollout = make_rollout(
        prompt=({"role": "user", "content": "hi"},),
        completion=({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "```` # out"}}]},),
        tool_calls=(),
    )
    text = as_markdown(rollout)
    assert "`````\n```` # out\n`````" in text
    assert text.startswith("# Rollout")
