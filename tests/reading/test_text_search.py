"""Search finds whatever is stored of a rollout, and whatever a viewer prints of it, in any case."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import called, ids, one, write
from rollout_hookspecs import Image, ToolCall
from sink_rollouts import SHAPE, batch

from examples import thorough
from rollout_plugins import open_run
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.conversation import conversation
from rollout_plugins.show.rollout_blocks import rollout_blocks


def saying(index: int, text: str, **fields):
    return one(1, index, completion=({"role": "assistant", "content": text},), **fields)


WORDS = {
    "ΟΔΟΣ": ["οδος", "ΟΔΟΣ", "Οδοσ", "οδο"],
    "İstanbul": ["İstanbul", "i̇stanbul", "stanbul", "İSTANBUL"],
    "Straße": ["strasse", "STRASSE", "straße", "STRAẞE"],
    "ﬁnal oﬃce": ["final", "FINAL OFFICE", "ﬁnal"],
    "ΜΆΪΟΣ": ["μάϊος", "ΜΆΪΟΣ"],
    "ПРИВЕТ, Мир": ["привет", "мир", "МИР"],
    "日本語 100% {a.b} [x] (y) \\d+ 'q' \"r\" $5^2|*?": ["日本", "100%", "{a.b}", "\\D+ 'Q' \"r\" $5^2|*?", "[x] (y)"],
}


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> StoredRun:
    rollouts = [saying(index, f"before {word} after") for index, word in enumerate(WORDS)]
    return open_run(write(tmp_path_factory.mktemp("words"), rollouts))


@pytest.mark.parametrize(("index", "text"), [(i, text) for i, texts in enumerate(WORDS.values()) for text in texts])
def test_a_text_is_found_in_any_case(words, index, text):
    assert ids(words.rollouts(search=text)) == [f"1.{index}"]


def test_characters_that_fold_to_the_same_are_the_same(tmp_path):
    """All of Unicode's letters that have a case, each found by the others of its kind."""
    kinds: dict[str, list[str]] = {}
    for char in map(chr, range(sys.maxunicode + 1)):
        if not 0xD800 <= ord(char) < 0xE000 and (folded := char.casefold()) != char:
            kinds.setdefault(folded, [folded]).append(char)
    rollouts = [saying(index, f"<{'><'.join(kind)}>") for index, kind in enumerate(kinds.values())]
    run = open_run(write(tmp_path, rollouts))
    sample = [kind for kind in kinds.values() if len(kind) > 2 or len(kind[0]) > 1]
    for kind in sample:
        found = [ids(run.rollouts(search=f"<{char}>")) for char in kind]
        assert found == [found[0]] * len(kind), kind
        assert len(found[0]) == 1


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(TEXTS, st.data())
@thorough
def test_any_part_of_any_text_is_found(tmp_path_factory, text, data):
    start = data.draw(st.integers(0, len(text) - 1))
    part = text[start : data.draw(st.integers(start + 1, len(text)))]
    run = open_run(write(tmp_path_factory.mktemp("any"), [saying(0, text)]))
    for spelled in {part, part.upper(), part.lower(), part.casefold()}:
        if spelled.casefold() in text.casefold():
            assert ids(run.rollouts(search=spelled)) == ["1.0"], (text, spelled)


def ask(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_everything_that_is_stored_is_found(tmp_path):
    shown = Image(hash="h", path="media/chart.png", width=640, height=480, note="scaled")
    before = ({"role": "assistant", "content": "", "tool_calls": [ask("lookup", {"city": "Bergen"})]},)
    rollouts = [
        saying(0, "no", prompt=before),
        saying(1, "no", tool_calls=(called("f"), replace(called("f", "error"), result="Quota", error="Backend down"))),
        saying(2, "no", columns={"answer": "forty-two", "facts": {"deep": ["Zebra"]}}),
        saying(3, "no", extra={"judge": 'it said "maybe"'}),
        saying(4, "no", marks={"note": "left out by hand"}),
        saying(5, "no", error="Environment crashed"),
        saying(6, "no", rendered="<|im_start|>template"),
        one(1, 7, completion=({"role": "assistant", "thinking": "Silent thought", "content": None},)),
        saying(8, "no", images=(shown,)),
        one(1, 9, completion=({"role": "tool", "name": "odd_name", "content": "no"},)),
    ]
    run = open_run(write(tmp_path, rollouts))
    searched = {
        "bergen": 0, "LOOKUP": 0, "quota": 1, "backend DOWN": 1, "Forty-Two": 2, "zebra": 2, 'said "MAYBE"': 3,
        "left out": 4, "environment crashed": 5, "<|im_start|>": 6, "silent thought": 7, "chart.png": 8,
        "640x480": 8, "ODD_name": 9,
    }  # fmt: skip
    assert {text: ids(run.rollouts(search=text)) for text in searched} == {
        text: [f"1.{index}"] for text, index in searched.items()
    }


def test_what_the_viewer_prints_of_a_call_is_found(tmp_path):
    calls = [
        ToolCall(name="nosuch", arguments={"a": 1}, status="unknown", error="no tool is called nosuch"),
        ToolCall(name="gone", arguments={}, status="unknown"),
        ToolCall(name="cut", arguments={}, status="not_run", error="by the limit"),
        ToolCall(name="bare", arguments=None, status="error"),
        ToolCall(name="crop", arguments={"box": [0, 0, 9, 9], "city": "Zürich", "how": {"k": True}}),
        ToolCall(name="texted", arguments='{"a": 2, "b": "x y"}'),
    ]
    run = open_run(write(tmp_path, [saying(index, "ok", tool_calls=(call,)) for index, call in enumerate(calls)]))
    searched = {
        "no such tool: no tool": [0], "→ no such tool: no tool is called": [0], "no such tool": [0, 1],
        "Not run: by": [2], "not run": [2], "failed": [3],
        "nosuch(a=1)": [0], "gone()": [1], "crop(box=[0, 0, 9, 9], city=\"zürich\"": [4], "0, 9, 9]": [4],
        'how={"k": true}': [4], "texted(a=2, b=\"x y\")": [5], "b=\"x": [5], "a=3": [],
    }  # fmt: skip
    assert {text: ids(run.rollouts(search=text)) for text in searched} == {
        text: [f"1.{index}" for index in found] for text, found in searched.items()
    }


def test_each_line_of_a_rollout_on_the_screen_is_found(tmp_path):
    rollouts = [replace(rollout, id=f"r1.1.t3.0.{rollout.index}") for rollout in batch()]
    run = open_run(write(tmp_path, rollouts))
    assert SHAPE in run.rollouts(search="crop")[0].images
    for rollout in run.rollouts():
        blocks = rollout_blocks(conversation(rollout), folder=tmp_path)
        lines = [line for block in blocks if block.spans for line in block.text.splitlines() if line.strip()]
        assert len(lines) > 2
        for line in lines:
            seen = line.partition("  ")[0] if rollout.tool_calls else line  # how long a call took stands behind it
            if not seen.startswith(
                ("at: ", "policy step: ", "generation: ", "group size: ", "rank: ", "attempt: ", "at")
            ):
                assert rollout.id in [found.id for found in run.rollouts(search=seen)], seen


@pytest.mark.parametrize("length", [400, 600, 200_000])
def test_a_text_may_be_long(tmp_path, length):
    text = "Lorem ipsum (ß) " * (length // 16) + "x" * (length % 16)
    run = open_run(write(tmp_path, [saying(0, text), saying(1, text[1:])]))
    assert ids(run.rollouts(search=text.upper() if length < 500 else text)) == ["1.0"]
