"""Conversations in the report: one, beside its siblings, and through the run."""

from __future__ import annotations

import pytest
from chromium import needs_chromium
from report_page import first_with_failure, wait_listed
from store_rig import record

from rollout_plugins import Rollout, open_run
from rollout_plugins.report import write_report

pytestmark = [needs_chromium, pytest.mark.slow]


def test_a_row_opens_its_conversation_and_back_returns_to_the_same_place(page):
    page.write("#filter", "step>=2")
    wait_listed(page, "n => n === 200")
    page.eval("document.querySelector('.rows').scrollTop = 1200")
    page.wait("document.querySelector('tr[data-place=\"36\"]')")
    page.box('tr[data-place="36"] td:nth-child(4)')
    scrolled = page.eval("document.querySelector('.rows').scrollTop")
    page.click('tr[data-place="36"] td:nth-child(4)')
    rollout = page.text(".rollout .id")
    assert page.eval("new URLSearchParams(location.hash.slice(1)).get('rollout')") == rollout
    page.eval("history.back()")
    page.wait("document.querySelector('#filter')?.value === 'step>=2'")
    assert page.eval("document.querySelector('.rows').scrollTop") == scrolled > 0
    page.eval("history.forward()")
    assert page.text(".rollout .id") == rollout
    page.wait("document.activeElement.tagName === 'H1'")


def test_a_permalink_opens_a_conversation_whole(page, pages):
    rollout = first_with_failure(pages)
    page.open(pages["shop"], f"#rollout={rollout.id}")
    shown = page.text(".conversation")
    assert rollout.prompt[1]["content"] in shown
    assert rollout.completion[-1]["content"] in shown
    assert "missing 1 required argument" in shown
    assert page.texts(".call .status")[:2] == ["✓ ok", "✕ failed"]
    assert page.texts(".call .head .num")[1] == "2 ms"
    assert rollout.completion[0]["reasoning_content"] in shown
    assert rollout.columns["item"] in page.text(".more")
    score = page.text(".score")
    assert "correct" in score
    assert "0.8" in score
    page.open(pages["shop"], "#rollout=nowhere")
    assert "not in this page" in page.text("h1")


def test_turns_fold_by_role_and_one_by_one(page, pages):
    page.open(pages["shop"], f"#rollout={first_with_failure(pages).id}")
    assert page.eval("document.querySelector('.turn.system button').ariaExpanded") == "false"
    assert "careful assistant" in page.text(".turn.system .preview")
    page.click(".turn.system button")
    assert "careful assistant" in page.text(".turn.system .body")
    page.click(".roles .chip:nth-child(3)")
    assert page.count(".turn.assistant .body") == 0
    page.press("f")
    page.wait("document.querySelectorAll('.turn .body').length === document.querySelectorAll('.turn').length")


def test_siblings_side_by_side_and_where_best_and_worst_part(page, pages):
    run = open_run(pages["shop"].parent)
    rollout = first_with_failure(pages)
    group = sorted((one.reward for one in run.siblings(rollout.id)), reverse=True)
    page.open(pages["shop"], f"#rollout={rollout.id}&view=group")
    shown = [float(text) for text in page.texts(".sibling header b")]
    assert len(shown) == 8
    assert shown[:2] == pytest.approx([group[0], group[-1]], abs=1e-3)
    assert shown[2:] == pytest.approx(group[1:-1], abs=1e-3)
    assert page.texts(".sibling .tag.good, .sibling .tag.bad") == ["best", "worst"]
    assert page.count(".parting") == 2
    assert "All begin with these 2 turns" in page.text(".group .fold summary")
    best, worst = page.texts(".parting")
    assert best != worst
    page.click(".sibling:nth-child(3) header a")
    page.wait("document.querySelector('.conversation')")


def test_the_same_prompt_through_the_run_with_its_words_compared(page, pages):
    rollout = first_with_failure(pages)
    page.open(pages["shop"], f"#rollout={rollout.id}&view=time")
    steps = {one.step for one in open_run(pages["shop"].parent).history(rollout)}
    assert len(steps) > 2
    assert f"{len(steps)} steps" in page.text(".tabs [aria-current]")
    assert page.eval("document.querySelector('.compare select').value") == rollout.id
    removed, added = "".join(page.texts(".words del")), "".join(page.texts(".words ins"))
    assert "guess" in removed
    assert "guess" not in added
    assert page.count(".dot") == len(list(open_run(pages["shop"].parent).history(rollout)))
    dot = page.eval("document.querySelector('.dot:nth-child(3)').title")
    page.eval("document.querySelector('.dot:nth-child(3)').click()")  # its neighbours may lie over it
    page.wait(f"document.querySelectorAll('.compare select')[1].selectedOptions[0].text.startsWith('{dot} (')")
    page.eval(
        "(() => { const [a, b] = document.querySelectorAll('.compare select'); b.value = a.value; b.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )
    assert "Choose two" in page.wait("document.querySelector('.through').innerText")


def test_words_that_were_searched_are_marked_where_they_stand(page):
    page.write("#filter", "careful guess")
    wait_listed(page, "n => n < 216")
    page.press("ArrowDown")
    page.wait("document.activeElement.dataset.place")
    page.press("Enter")
    page.wait("document.querySelector('.conversation')")
    page.press("f")
    page.wait("document.querySelectorAll('mark').length >= 2")
    assert {word.lower() for word in page.texts("mark")} == {"careful", "guess"}


def test_images_and_panels_of_plugins(page, pages):
    rollout = next(iter(open_run(pages["seen"].parent).rollouts()))
    page.open(pages["seen"], f"#rollout={rollout.id}")
    page.wait("[...document.querySelectorAll('.turn img')].every(one => one.complete && one.naturalWidth === 320)")
    assert page.count(".turn img") >= 2
    board, *_ = page.texts(".turn .panel")
    assert "x o\no x" in board
    assert page.text(".turn .fold summary") == "the message itself"
    assert page.texts(".conversation > .panel td") == ["e4", "0.5"]
    page.click(".turn .image button")
    assert page.eval("document.querySelector('.turn .image button').ariaPressed") == "true"


def test_nan_is_never_the_best_of_its_group(tab, tmp_path):
    made = [
        Rollout(
            id="", index=n, group=0, group_size=3, reward=reward, prompt=({"role": "user", "content": "Shall we?"},),
            completion=({"role": "assistant", "content": f"answer {n}"},),
        )
        for n, reward in enumerate((0.5, float("nan"), 2.0))
    ]  # fmt: skip
    run = record(tmp_path, made)
    write_report(run, tmp_path / "report.html")
    tab.size(1280, 900)
    tab.open(tmp_path / "report.html", f"#rollout={run[1].id}&view=group")
    assert [text.split()[0] for text in tab.texts(".sibling header")] == ["2.000", "nan", "0.500"]
    assert "in its group" not in tab.text(".score")
    tab.open(tmp_path / "report.html", f"#rollout={run[0].id}")
    assert "2 of 3 in its group" in tab.text(".score")


def test_equal_answers_of_a_group_are_one_card(tab, tmp_path):
    said = ["yes", "no", "yes", "yes", "maybe", "no", "well", "hm"]
    made = [
        Rollout(
            id="", index=n, group=0, group_size=8, reward=float(text == "yes"),
            prompt=({"role": "user", "content": "Shall we?"},), completion=({"role": "assistant", "content": text},),
        )
        for n, text in enumerate(said)
    ]  # fmt: skip
    run = record(tmp_path, made)
    write_report(run, tmp_path / "report.html")
    tab.size(1280, 900)
    tab.open(tmp_path / "report.html", f"#rollout={run[3].id}&view=group")
    cards = tab.texts(".sibling header")
    assert ["×3" in cards[0], "×2" in " ".join(cards[1:]), len(cards)] == [True, True, 5]
    assert "this one" in cards[0]
    assert "5 different answers" in tab.text(".group > p")
    assert "of 5" in tab.text(".more-cards")
    tab.click(".more-cards button:last-child")
    tab.wait("document.querySelector('.columns').scrollLeft > 0")
    assert tab.faults == []
