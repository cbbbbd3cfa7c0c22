"""What a person sees of a rollout in a terminal: the right words, within the lines, whatever the content."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from shown_rollouts import anything, asks, rollout, rollouts, sizes, traces

from examples import thorough
from rollout_plugins import Image, ToolCall
from rollout_plugins.content.trace import default_trace
from rollout_plugins.show import layout, render_group, render_rollout, render_rollouts, render_steps, sparkline
from rollout_plugins.show.text import clean, duration, number, one_line, shorten, signed


def shown(renderable, width=100, *, color=False):
    out = io.StringIO()
    console = Console(
        file=out, width=width, height=30, force_terminal=color, color_system="standard" if color else None
    )
    console.print(renderable)
    return out.getvalue()


def lines(renderable, width=100):
    return [line.rstrip() for line in shown(renderable, width).split("\n")[:-1]]


@pytest.mark.parametrize("source", [rollout(), default_trace(rollout())], ids=["rollout", "trace"])
def test_a_conversation_reads_turn_by_turn_with_each_call_beside_its_outcome(source):
    assert lines(render_rollout(source, title="best", width=100)) == [
        "best  step 12  group 3  #13 ────────────────────────────────────────── reward 1.75  advantage +1.224",
        "run-7 · correct 1.0 · format 0.75 · style — · finish length · 96 → 1,212 tokens · 4 calls, 2 failed",
        "system     Be careful.",
        "user       What is 12 * 7?",
        "assistant  I should multiply.",
        "           Let me see.",
        "           multiply(a=12, b=7) → 84 (12 ms)",
        "           divide(a=1, b=0) → ZeroDivisionError: division by zero",
        "           serch() → no such tool: no",
        "assistant  It is 84.",
        "           multiply(a=3) → not run: length limit",
        "columns    answer=84",
    ]


def test_results_that_came_back_out_of_order_stand_beside_the_calls_they_answer():
    completion = (
        {"role": "assistant", "tool_calls": asks(("slow", {}), ("fast", {}))},
        {"role": "tool", "content": "from fast"},
        {"role": "tool", "content": "from slow"},
    )
    calls = (
        ToolCall(name="slow", arguments={}, reply=2, result="from slow"),
        ToolCall(name="fast", arguments={}, position=1, reply=1, result="from fast"),
    )
    source = rollout(completion=completion, tool_calls=calls)
    for text in (shown(render_rollout(source)), shown(render_rollout(default_trace(source)))):
        assert "slow() → from slow" in text
        assert "fast() → from fast" in text
        assert text.count("from slow") == 1


def test_a_tool_message_nobody_claims_is_a_turn_of_its_own():
    source = rollout(completion=({"role": "tool", "content": "hello?"},), tool_calls=())
    assert "tool       hello?" in lines(render_rollout(source, width=100))


def test_errors_are_red_reasoning_is_dim_and_a_cut_run_is_yellow():
    text = shown(render_rollout(rollout(), width=100), color=True)
    assert "\x1b[31mZeroDivisionError" in text
    assert "\x1b[31mno such tool" in text
    assert "\x1b[33mnot run" in text
    assert "\x1b[2;3mI should multiply." in text
    assert "\x1b[32m+1.224" in text


def test_thinking_written_into_the_text_is_dim_as_well():
    source = rollout(completion=({"role": "assistant", "content": "<think>hm</think>Yes."},), tool_calls=())
    text = shown(render_rollout(source, width=100), color=True)
    assert "\x1b[2;3m<think>hm</think>" in text
    assert "\x1b[2;3mYes" not in text


def test_an_image_says_its_name_and_size():
    blocks = [
        {"type": "image", "image": Image(hash="x", uri="/data/chart.png", width=64, height=48)},
        {"type": "image"},
    ]
    text = shown(render_rollout(rollout(prompt=({"role": "user", "content": blocks},))))
    assert "[IMAGE chart.png 64x48]" in text
    assert "[IMAGE]\n" in text.replace(" \n", "\n").replace("  ", "")


def test_the_error_of_a_rollout_is_said_in_red():
    assert "\x1b[31mreward function timed out" in shown(
        render_rollout(rollout(error="reward function timed out")), color=True
    )


def test_eval_rollouts_say_so():
    assert lines(render_rollout(rollout(split="eval")))[0].startswith("eval step 12")


def test_an_empty_answer_is_said_to_be_empty():
    source = rollout(completion=({"role": "assistant", "content": None},), tool_calls=())
    assert "assistant  (empty)" in lines(render_rollout(source))


def test_markup_ansi_and_bidi_marks_are_shown_and_not_obeyed():
    evil = "[red]x[/red] :smile: \x1b[2J\x1b]8;;http://e\x07 \x9b31m \u202eabc \udc80 a\rb"
    calls = (ToolCall(name="[/x]" + evil, arguments={evil: evil}, result=evil, reply=1),)
    said = {"role": evil, "content": evil, "tool_calls": asks(("[/x]" + evil, {evil: evil}))}
    source = rollout(
        id=evil, completion=(said,), tool_calls=calls, rewards={evil: 1.0}, columns={evil: evil}, error=evil
    )
    for sources in (
        render_rollout(source, title=evil),
        render_group([source, source]),
        render_rollouts([("", source)]),
    ):
        text = shown(sources, width=100)
        assert "[red]x[/red] :smile: ␛[2J␛]8;;http://e␇ \\x9b31m \\u202eabc \\udc80 a␍b" in text.replace(
            "\n           ", " "
        )
        assert not set(text) & set("\x1b\x07\x9b\u202e\udc80\r")


def test_a_long_text_keeps_its_head_and_tail_and_says_how_much_is_missing():
    text = "first" + "x" * 1_000_000 + "last"
    rows = lines(
        render_rollout(rollout(completion=({"role": "assistant", "content": text},), tool_calls=()), max_lines=14)
    )
    assert len(rows) <= 14
    assert any(row.startswith("assistant  first") for row in rows)
    assert any(row.endswith("last") for row in rows)
    missing = next(row for row in rows if "characters …" in row).split()[1]
    assert int(missing.replace(",", "")) + sum(row.count("x") for row in rows) == 1_000_000


def test_a_system_prompt_goes_first_when_there_is_no_room():
    source = rollout(
        prompt=({"role": "system", "content": "S " * 4000}, {"role": "user", "content": "What is 12 * 7?"})
    )
    text = shown(render_rollout(source, max_lines=10))
    assert "S S" not in text
    assert "What is 12 * 7?" in text
    assert "It is 84." in text


def test_of_ten_thousand_turns_only_both_ends_are_laid_out(monkeypatch):
    turns = tuple({"role": "user" if n % 2 else "assistant", "content": f"turn {n} " * 50} for n in range(10_000))
    laid_out, pieces = [], layout._turn_pieces
    monkeypatch.setattr(layout, "_turn_pieces", lambda place, *rest: laid_out.append(place) or pieces(place, *rest))
    rows = lines(render_rollout(rollout(prompt=(), completion=turns, tool_calls=()), max_lines=24))
    assert len(laid_out) <= 2 * 24
    assert len(rows) <= 24
    assert any("turn 9999" in row for row in rows)
    assert any("turn 0" in row for row in rows)
    assert any(row.strip().startswith("… 9,99") and row.endswith("messages …") for row in rows)


def test_without_a_limit_nothing_is_left_out():
    turns = tuple({"role": "assistant", "content": f"turn {n}\nsecond line"} for n in range(200))
    text = shown(render_rollout(rollout(completion=turns, tool_calls=()), max_lines=None))
    assert all(f"turn {n}\n" in text.replace(" \n", "\n") for n in range(200))
    assert "…" not in text


def test_siblings_stand_side_by_side_best_first_under_their_prompt():
    answers = [("b", 0.5), ("a", 2.0), ("c", -1.0)]
    group = [rollout(completion=({"role": "assistant", "content": t},), tool_calls=(), reward=r) for t, r in answers]
    rows = lines(render_group(group, width=120), 120)
    assert rows[0].startswith("step 12  group 3  3 answers")
    assert rows[0].endswith("rewards █▅▁ 2.0 … -1.0")
    assert sum("What is 12 * 7?" in row for row in rows) == 1
    assert [cell.split()[1] for cell in next(row for row in rows if "asst a" in row).split("│")] == ["a", "b", "c"]


def test_a_group_too_wide_for_the_screen_shows_its_best_and_its_worst():
    group = [
        rollout(completion=({"role": "assistant", "content": f"n{n}"},), tool_calls=(), reward=n) for n in range(8)
    ]
    text = shown(render_group([*group, replace(group[0], reward=None)], width=80), 80)
    assert "9 answers, 2 of them shown" in text
    assert "asst n7" in text
    assert "asst n0" in text


def test_several_rollouts_share_the_lines_fairly():
    long = rollout(completion=({"role": "assistant", "content": "word " * 5000},), tool_calls=())
    rows = lines(render_rollouts([("best", rollout()), ("worst", long)], max_lines=30))
    assert len(rows) == 30
    assert rows[0].startswith("best")
    assert sum(row.startswith("worst") for row in rows) == 1
    assert "           multiply(a=3) → not run: length limit" in rows


def fits(renderable, width, max_lines):
    rows = shown(renderable, width).split("\n")[:-1] if max_lines else []
    assert len(rows) <= max_lines
    assert all(cell_len(row) <= width for row in rows)
    assert not any(set(row) & set("\x1b\r\x07\x9b\u202e") for row in rows)


@thorough
@given(source=rollouts | traces, **sizes)
def test_no_content_makes_a_rollout_raise_or_outgrow_its_lines(source, width, max_lines):
    fits(render_rollout(source, width=width, max_lines=max_lines), width, max_lines)
    shown(render_rollout(source, width=width + 40, max_lines=None), width + 40)


@thorough
@given(sources=st.lists(rollouts | traces, max_size=4), **sizes)
def test_no_content_makes_several_raise_or_outgrow_their_lines(sources, width, max_lines):
    fits(render_group(sources, width=width, max_lines=max_lines), width, max_lines)
    fits(render_rollouts([("best", source) for source in sources], width=width, max_lines=max_lines), width, max_lines)


@thorough
@given(source=rollouts)
def test_one_strange_field_does_not_cost_the_others(source):
    good = replace(source, completion=({"role": "assistant", "content": "still here"},), tool_calls=(), prompt=())
    assert "still here" in shown(render_rollout(good, max_lines=40))


@thorough
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(["step", "reward", "tool_calls", "tool_errors"]), anything | st.floats())
        | anything,
        max_size=200,
    ),
    **sizes,
)
def test_no_numbers_make_the_chart_raise_or_outgrow_its_lines(rows, width, max_lines):
    fits(render_steps(rows, width=width, max_lines=max_lines), width, max_lines)


def test_the_chart_shows_reward_rising_and_tool_errors_falling():
    rows = [{"step": n, "reward": n / 10, "tool_calls": 20, "tool_errors": 10 - n} for n in range(1, 11)]
    text = lines(render_steps(rows, width=60), 60)
    assert text[0] == "reward 0.1 → 1.0"
    assert text[1].startswith(" 1.0 │")
    first, last = text[1].find("█"), text[1].rstrip().rfind("█")
    assert first > 30
    assert last > 50
    errors = text.index("tool calls that failed 45% of 20 → 0% of 20")
    assert text[errors + 1].startswith(" 45% │█")
    assert not text[errors + 1].endswith("█" * 20)
    assert text[-1].startswith("     └step 1")
    assert text[-1].endswith(" 10")


def test_with_few_lines_one_chart_has_a_line_of_functions_below():
    rewards = {"reward/length": (0.0, 5.0), "reward/correct": (0.9, 0.0)}
    calls = ((35, 24), (11, 4), (0, 0))
    rows = [
        {"step": n, "reward": n, "tool_calls": made, "tool_errors": failed, **{name: ends[n > 0] for name, ends in rewards.items()}}
        for n, (made, failed) in enumerate(calls)
    ]  # fmt: skip
    text = lines(render_steps(rows, width=60, max_lines=7), 60)
    assert len(text) == 7
    assert text[-2:] == ["correct 0.9 → 0.0  length 0.0 → 5.0", "tool calls that failed 69% of 35 → no calls"]


def test_a_handful_of_calls_has_no_share_and_no_bar():
    rows = [{"step": n, "reward": n, "tool_calls": 9 + n, "tool_errors": 5} for n in range(2)]
    text = lines(render_steps(rows, width=60), 60)
    title = text.index("tool calls that failed 5 of 9 → 50% of 10")
    assert text[title + 1].startswith(" 50% │" + " " * 20 + "█")


def test_the_chart_leaves_out_absent_tools_and_averages_steps_beyond_its_width():
    text = lines(render_steps([{"step": n, "reward": math.sin(n / 99)} for n in range(5000)], width=60), 60)
    assert not any("tool" in row for row in text)
    assert max(map(len, text)) <= 60
    assert lines(render_steps([], width=60), 60) == ["reward  no numbers yet"]


def test_a_sparkline_has_a_gap_where_there_is_no_number():
    assert sparkline([0, None, 0.5, math.nan, 1, "x", math.inf]) == "▁ ▅ █  "
    assert sparkline([2, 2]) == "▅▅"
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0.0, "0.0"),
        (0, "0"),
        (1, "1"),
        (1.0, "1.0"),
        (0.7312, "0.731"),
        (-0.25, "-0.25"),
        (12345.5, "12,345.5"),
        (1e-5, "1e-05"),
        (1.5e9, "1.5e+09"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ("NaN", "NaN"),
    ],
)
def test_numbers_are_short_and_a_missing_one_is_not_zero(value, text):
    assert number(value) == text


def test_advantages_carry_their_sign():
    assert [signed(value) for value in (1.2, -1.2, 0.0, None)] == ["+1.2", "-1.2", "0.0", "—"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "<1 ms"),
        (0.012, "12 ms"),
        (0.9999, "1.0 s"),
        (1.31, "1.3 s"),
        (125, "2 min 5 s"),
        (None, ""),
        (-1, ""),
    ],
)
def test_durations_read_like_a_person_writes_them(seconds, text):
    assert duration(seconds) == text


def test_shortening_says_exactly_how_much_is_missing():
    assert shorten("a" * 12_365, 20) == "a" * 10 + "… 12,345 characters …" + "a" * 10
    assert shorten("short", 5) == "short"


@thorough
@given(st.text(st.characters(codec=None)), st.integers(1, 50))
def test_one_line_is_one_clean_line_of_the_asked_length(text, chars):
    line = one_line(text, chars)
    assert len(line) <= chars
    assert len(line.splitlines()) <= 1


@thorough
@given(st.text(st.characters(codec=None)))
def test_clean_text_can_be_encoded_and_is_clean_already(text):
    assert clean(clean(text)) == clean(text) == clean(text).encode().decode()


@thorough
@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_clean_leaves_ordinary_text_alone(text):
    assert clean(text) == text


def test_a_number_beside_the_conversation_is_short_until_everything_is_asked_for():
    judged = replace(rollout(), extra={"judge.score": 2 / 15})
    assert "judge.score=0.133\n" in shown(render_rollout(judged)).replace(" ", "")
    assert "judge.score=0.13333333333333333" in shown(render_rollout(judged, max_lines=None))


def test_on_a_narrow_screen_no_name_beside_the_text_is_cut():
    one = rollout(extra={"note": 1}, marks={"kept": "yes"}, error="ValueError: no", columns={"answer": 4})
    names = {row[:5].rstrip() for row in lines(render_rollout(one, width=50, max_lines=None), 50)[3:]}
    assert {"more", "mark", "row"} <= names
    assert not any("…" in name for name in names)
