"""The report in a real browser, opened from disk: what the run was, its charts, its table and filters."""

from __future__ import annotations

import pytest
from chromium import needs_chromium
from report_page import ROWS, listed, rewards, wait_listed

from rollout_plugins import open_run

pytestmark = [needs_chromium, pytest.mark.slow]


def test_what_the_run_was_and_its_course(page):
    assert page.text("h1") == "Qwen3-0.6B · r1"
    tiles = " ".join(page.texts(".tiles > div"))
    assert "216" in tiles
    assert "192 train, 24 eval" in tiles
    titles = page.texts(".chart figcaption b")
    assert titles[:3] == ["Reward", "Reward by function", "Spread in groups"]
    assert {"Answer length", "Cut off at the limit", "Tool calls", "Failed tool calls"} <= set(titles)
    drawn = page.eval(
        "[...document.querySelectorAll('.plot canvas')].map(c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size)"
    )
    assert len(drawn) == len(titles)
    assert min(drawn) > 10, "every chart has more than its background"
    page.click(".whole > summary")
    facts = page.text(".whole-facts")
    for word in ("GRPOTrainer", "weight 0.8", "price", "temperature", "1.16.0"):
        assert word in facts


def test_failed_calls_are_told_with_their_number(page, pages):
    title = "[...document.querySelectorAll('.chart')].find(c => c.innerText.includes('Failed tool calls'))"
    said = page.eval(f"{title}.querySelector('.key').innerText")
    stats = [row for row in open_run(pages["shop"].parent).stats() if row["split"] == "train"]
    for row in (stats[0], stats[-1]):
        made, failed = row["tool_calls"], row["tool_errors"]
        assert (f"% of {made}" if made >= 10 else f"{failed} of {made}" if made else "no calls") in said, said


def test_a_run_of_few_calls_shows_how_many_failed_and_no_share(page, pages):
    page.open(pages["few"])
    (tile,) = [text for text in page.texts(".tiles > div") if "tool calls" in text.lower()]
    assert "6 failed" in tile
    assert "%" not in tile
    chart = "[...document.querySelectorAll('.chart')].find(c => c.innerText.includes('Failed tool calls'))"
    assert "too few for a share" in page.eval(f"{chart}.innerText")
    assert "2 of 3" in page.eval(f"{chart}.querySelector('.key').innerText")


def test_all_numbers_as_a_table(page, pages):
    page.click(".numbers summary")
    page.wait("document.querySelector('.numbers tbody tr')")
    rows = [text.split("\t") for text in page.texts(".numbers tbody tr")]
    wanted = [row["step"] for row in open_run(pages["shop"].parent).stats()]
    assert [int(row[0]) for row in rows] == wanted


def test_the_table_sorts_by_numbers(page):
    page.click(".rows th:nth-child(4) button")
    assert page.eval("document.querySelector('.rows th:nth-child(4)').ariaSort") == "descending"
    down = rewards(page)
    page.click(".rows th:nth-child(4) button")
    up = rewards(page)
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    assert up[0] < down[0]
    page.wait("location.hash === '#sort=reward'")
    page.click(".rows th:nth-child(4) button")
    assert page.eval("document.querySelector('.rows th:nth-child(4)').ariaSort") == "none"


def test_only_rows_in_sight_exist_and_all_can_be_scrolled_to(page):
    assert page.count(ROWS) < 60
    page.eval("document.querySelector('.rows').scrollTop = 1e6")
    page.wait("document.querySelector('tr[data-place=\"215\"]')")
    assert page.count(ROWS) < 60
    assert page.eval("document.querySelector('.rows table').getAttribute('aria-rowcount')") == "217"


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("reward<0.5", {"where": "reward < 0.5"}),
        ("reward >= 0.5 and step > 6", {"where": "reward >= 0.5 and step > 6"}),
        ("finish=length split=eval", {"finish": "length", "split": "eval"}),
        ("tool:multiply", {"tool": "multiply"}),
        ("failed=0", {"where": "failed_calls = 0"}),
        ('"the total is 20"', {"search": "the total is 20"}),
        ("GUESS step=1", {"search": "guess", "step": 1}),
        ("item=lamps", {"search": "lamps"}),
        ("correct=1", {"where": "reward/correct = 1"}),
        ("advantage=none", {"where": "advantage is null"}),
        ("id:.t3.", {"where": "id like '%.t3.%'"}),
    ],
)
def test_the_filter_finds_what_the_reader_finds(page, pages, written, wanted):
    page.write("#filter", written)
    assert wait_listed(page, f"n => n === {open_run(pages['shop'].parent).count(**wanted)}") != 216


def test_words_and_what_must_not_be_there(page, pages):
    page.write("#filter", "lamps -guess")
    run = open_run(pages["shop"].parent)
    wait_listed(
        page,
        f"n => n === {run.count(search='lamps') - len({r.id for r in run.rollouts(search='lamps')} & {r.id for r in run.rollouts(search='guess')})}",
    )


def test_a_filter_that_is_not_understood_says_what_there_is(page):
    page.write("#filter", "rewrd<1")
    said = page.wait("document.querySelector('#filter-says.bad')?.innerText")
    assert "no column “rewrd”" in said
    assert "reward" in said
    page.write("#filter", "reward<x")
    page.wait("document.querySelector('#filter-says').innerText.includes('needs a number')")
    page.write("#filter", "nothing-says-this")
    page.click(".nothing button")
    assert wait_listed(page, "n => n === 216")


def test_dragging_over_the_histogram_filters(page):
    page.drag(".bars", 0.6, 0.99)
    few = wait_listed(page, "n => n < 216")
    assert 0 < few < 216
    assert min(rewards(page)) > 0.5
    assert "reward 0.6" in page.text(".histogram .chip") or "reward 0.5" in page.text(".histogram .chip")
    page.wait("location.hash.startsWith('#range=reward')")
    page.click(".histogram .chip")
    assert listed(page) == 216


def test_the_histogram_by_keyboard_and_of_other_numbers(page):
    page.eval("document.querySelector('.handle').focus()")
    page.press(*["ArrowRight"] * 18)
    low = page.eval("Number(document.querySelector('.handle').getAttribute('aria-valuenow'))")
    assert low > 0.4
    assert min(rewards(page)) >= low
    assert page.eval("document.activeElement.getAttribute('aria-label')") == "lowest reward"
    page.press("Escape")
    assert listed(page) == 216
    page.eval(
        "(() => { const s = document.querySelector('.histogram select'); s.value = 'tokens'; s.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )
    page.drag(".bars", 0.0, 0.2)
    page.wait("document.querySelector('.histogram .chip')?.innerText.startsWith('tokens')")
    assert 0 < listed(page) < 216


def test_a_step_of_a_chart_lists_its_rollouts(page):
    page.eval("document.querySelector('.plot').focus()")
    page.press("Home", "ArrowRight", "ArrowRight")
    assert "step 3" in page.text(".chart figcaption")
    page.press("Enter")
    assert wait_listed(page, "n => n === 16")
    assert page.eval("document.querySelector('#filter').value") == "step=3"
    x, y, width, height = page.box(".plot .u-over")
    page.mouse("mouseMoved", x + width - 1, y + height / 2)
    page.wait("document.querySelector('.chart figcaption').innerText.includes('step 12')")


def test_a_resumed_run_says_so(page, pages):
    page.open(pages["resumed"])
    first = dict(zip(page.texts(".first dt"), page.texts(".first dd"), strict=True))
    assert (first["Lost"], first["Not trained on"], first["Not sent"]) == ("nothing.", "2 stale.", "160 to sink.")
    page.click(".whole > summary")
    assert "attempts" in page.text(".whole > summary")
    assert [text.split() for text in page.texts(".across tbody tr")][1][0] == "2"
    again = next(iter(open_run(pages["resumed"].parent).rollouts(where="attempt = 2")))
    page.open(pages["resumed"], f"#rollout={again.id}")
    assert "attempt 2" in page.text(".rollout .line")


def test_a_run_without_rollouts_says_so(page, pages):
    page.open(pages["empty"])
    assert "This run has no rollouts." in page.text("#rollouts")
    assert page.count(".plot") == 0


def test_the_first_sentences_are_a_click_from_the_rollouts(page, pages):
    said = dict(zip(page.texts(".first dt"), page.texts(".first dd"), strict=True))
    run = open_run(pages["shop"].parent)
    best, worst = (run.rollouts(order=order, limit=1)[0] for order in ("-reward", "reward"))
    assert said["Best"].startswith(f"reward {best.reward:.3f} at step {best.step}: “I buy")
    assert said["Worst"].startswith(f"reward {worst.reward:.3f} at step {worst.step}: “I buy")
    assert said["Lost"] == "nothing."
    page.click(".first dd a")
    page.wait("document.querySelector('.rollout h1')")
    assert page.text(".rollout .id") == best.id


def test_findings_come_first_and_lead_to_their_rollouts(page, pages):
    findings = open_run(pages["shop"].parent).check().findings
    assert len(page.texts(".findings li")) == len(findings)
    assert "clear" in page.text(".checks")
    for item, finding in zip(page.texts(".findings li"), findings, strict=True):
        assert finding.text in item


def test_every_place_of_the_tiles_is_taken(page):
    for width in (1280, 800, 390):
        page.size(width, 900)
        ends = page.eval(
            "(() => { const all = [...document.querySelectorAll('.tiles > div')].map(one => one.getBoundingClientRect());"
            "const most = Math.max(...all.map(one => one.right));"
            "return [...new Set(all.map(one => one.top))].map(top => most - Math.max(...all.filter(one => one.top === top).map(one => one.right))) })()"
        )
        assert max(ends) < 2, width
