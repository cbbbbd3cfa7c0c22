"""The report in a real browser, opened from disk, used with a real mouse and real keys."""

from __future__ import annotations

import re

import pytest
from chromium import browser, needs_chromium
from report_rig import empty, fill, resumed, seen
from store_rig import record
from test_report import Boards

from rollout_plugins import Rollout, open_run
from rollout_plugins.report import write_report

pytestmark = [needs_chromium, pytest.mark.slow]
ROWS = "tr[data-place]"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The reports that the tests open, by name."""
    made = {}
    for name, make in (
        ("shop", lambda folder: fill(folder, range(1, 13))),
        ("seen", seen),
        ("resumed", resumed),
        ("empty", empty),
    ):
        folder = tmp_path_factory.mktemp(name)
        make(folder)
        made[name] = folder / "report.html"
        write_report(open_run(folder), made[name], plugins=[Boards()] if name == "seen" else [])
    return made


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(tab, pages):
    """The shop's report, fresh; nothing may go wrong in it, and nothing may be asked of any network."""
    tab.size(1280, 900)
    tab.media()
    tab.faults.clear()
    tab.asked.clear()
    tab.open(pages["shop"])
    yield tab
    tab.eval("localStorage.clear()")
    assert tab.faults == []
    assert {address for address in tab.asked if not address.startswith("file:")} <= {"about:blank"}
    assert {address.partition("#")[0] for address in tab.asked if address.startswith("file:")} <= {
        path.as_uri() for path in pages.values()
    }


def listed(page):
    return int(re.match(r"[\d,]+", page.text("#filter-says"))[0].replace(",", ""))


def wait_listed(page, test):
    """The number of rollouts listed, when it has become what it should."""
    page.wait(
        f"({test})(Number(document.querySelector('#filter-says').innerText.match(/^[\\d,]+/)[0].replaceAll(',', '')))"
    )
    return listed(page)


def rewards(page):
    """The rewards of the rows in sight, as they are written."""
    at = 1 + next(at for at, text in enumerate(page.texts(".rows th")) if text.startswith("reward"))
    return [float(text.replace("\u2212", "-")) for text in page.texts(f"{ROWS} td:nth-child({at})")]


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
    assert page.eval("location.hash") == "#sort=reward"
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
        f"n => n === {run.count(search='lamps') - len({r.id for r in run.search('lamps')} & {r.id for r in run.search('guess')})}",
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
    assert page.eval("location.hash").startswith("#range=reward")
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


def first_with_failure(pages):
    return next(iter(open_run(pages["shop"].parent).rollouts(where="failed_calls > 0")))


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
    group = sorted((one.reward for one in run.group(rollout.id)), reverse=True)
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


def test_everything_by_keyboard_alone(page):
    page.press("/")
    page.wait("document.activeElement.id === 'filter'")
    page.send("Input.insertText", text="step=5")
    wait_listed(page, "n => n === 16")
    page.press("ArrowDown")
    assert page.wait("document.activeElement.dataset.place") == "0"
    page.press("ArrowDown", "j", "k")
    page.wait("document.activeElement.dataset.place === '1'")
    page.press("End")
    assert page.wait("document.activeElement.dataset.place === '15'")
    page.press("Enter")
    first = page.text(".rollout .id")
    page.press("k")
    page.wait(f"document.querySelector('.rollout .id').innerText !== {first!r}")
    page.press("g")
    page.wait("document.querySelector('.sibling')")
    page.press("t")
    page.wait("document.querySelector('.through')")
    page.press("Escape")
    page.wait("document.querySelector('#filter')?.value === 'step=5'")
    page.press("?")
    assert "Keys" in page.wait("document.querySelector('dialog[open]')?.innerText")
    page.press("Escape")
    page.wait("!document.querySelector('dialog[open]')")


def test_tab_reaches_every_control_and_the_skip_link_comes_first(page):
    seen_ = []
    for _ in range(40):
        page.press("Tab")
        seen_.append(
            page.eval(
                "(e => e.className + ' ' + (e.ariaLabel || e.innerText || e.id || e.tagName))(document.activeElement)"
            )
        )
    assert seen_[0].startswith("skip")
    text = "\n".join(seen_)
    for word in (
        "Mono",
        "Colours",
        "Keyboard help",
        "What the run was",
        "plot",
        "lowest reward",
        "Filter and search",
        "Columns",
        "step",
    ):
        assert word in text


def colours(page):
    return page.eval("(s => [s.backgroundColor, s.color])(getComputedStyle(document.documentElement))")


def test_light_and_dark_as_the_system_and_as_chosen(page, pages):
    light = colours(page)
    page.media(colours="dark")
    dark = colours(page)
    assert light != dark
    page.click(".tools button:nth-child(2)")
    assert colours(page) == light
    page.press("d")
    assert colours(page) == dark
    page.media()
    page.open(pages["shop"])
    assert colours(page) == dark, "the choice is kept"


def test_columns_are_chosen_and_fixed_width_is_kept(page, pages):
    page.click(".picker > summary")
    page.eval(
        "[...document.querySelectorAll('.picker label')].find(l => l.innerText.trim() === 'total').querySelector('input').click()"
    )
    assert "total" in page.texts(".rows th")
    page.press("m")
    page.open(pages["shop"])
    assert page.eval("document.documentElement.classList.contains('mono')")


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


@pytest.mark.parametrize(
    "fragment", ["", "#rollout=r1.1.t1.0.16", "#rollout=r1.1.t1.0.16&view=group", "#rollout=r1.1.t1.0.16&view=time"]
)
def test_a_phone_scrolls_in_one_direction(page, pages, fragment):
    page.size(360, 740)
    page.open(pages["shop"], fragment)
    assert page.eval("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_print_shows_what_is_folded_and_hides_what_is_clicked(page, pages):
    page.open(pages["shop"], "#rollout=r1.1.t1.0.16")
    assert page.count(".turn.system .body") == 0
    page.eval("window.dispatchEvent(new Event('beforeprint'))")
    assert page.count(".turn.system .body") == 1, "at once, for the printer does not wait"
    page.send("Emulation.setEmulatedMedia", media="print")
    hidden = page.eval("['.roles', '.way', '.bar-top'].map(s => getComputedStyle(document.querySelector(s)).display)")
    assert hidden == ["none"] * 3
    page.eval("window.dispatchEvent(new Event('afterprint'))")
    page.media(colours="dark", kind="print")
    assert colours(page)[0] == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")


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


def test_a_resumed_run_says_so(page, pages):
    page.open(pages["resumed"])
    assert dict(zip(page.texts(".first dt"), page.texts(".first dd"), strict=True))["Not trained on"] == "2 stale."
    page.click(".whole > summary")
    assert "attempts" in page.text(".whole > summary")
    assert [text.split() for text in page.texts(".across tbody tr")][1][0] == "2"
    again = next(iter(open_run(pages["resumed"].parent).rollouts(where="attempt = 2")))
    page.open(pages["resumed"], f"#rollout={again.id}")
    assert "attempt 2" in page.text(".rollout .line")


def test_a_run_without_rollouts_says_so(page, pages):
    page.open(pages["empty"])
    assert "This run has no rollouts yet." in page.text("#rollouts")
    assert page.count(".plot") == 0


def test_the_first_sentences_are_a_click_from_the_rollouts(page, pages):
    said = dict(zip(page.texts(".first dt"), page.texts(".first dd"), strict=True))
    run = open_run(pages["shop"].parent)
    best, worst = (next(run.rollouts(order=order, limit=1)) for order in ("-reward", "reward"))
    assert said["Best"].startswith(f"reward {best.reward:.3f} at step {best.step}: “I buy")
    assert said["Worst"].startswith(f"reward {worst.reward:.3f} at step {worst.step}: “I buy")
    (failed,) = run.sql("select count(*) as n from tool_calls where name = 'multiply'").to_pylist()
    assert said["Fails most"] == f"multiply failed in {failed['n']} of {failed['n']} calls."
    assert said["Teach nothing"] == "No group of 24: in each the rewards differ."
    assert said["Lost"] == "nothing."
    page.click(".first dd a")
    page.wait("document.querySelector('.rollout h1')")
    assert page.text(".rollout .id") == best.id
    page.press("Escape")
    page.click(".first dd .tool")
    assert wait_listed(page, "n => n > 0 && n < 216") == run.count(where="failed_calls > 0")


def test_a_chart_keeps_its_height_while_it_is_read(page):
    heights = "[...document.querySelectorAll('.chart figcaption')].map(one => one.offsetHeight)"
    before = page.eval(heights)
    x, y, width, height = page.box(".plot .u-over")
    for share in (0.1, 0.5, 0.9):
        page.mouse("mouseMoved", x + share * width, y + height / 2)
        page.wait("document.querySelector('.chart .head').innerText.includes('step')")
        assert page.eval(heights) == before


def test_every_place_of_the_tiles_is_taken(page):
    for width in (1280, 800, 390):
        page.size(width, 900)
        ends = page.eval(
            "(() => { const all = [...document.querySelectorAll('.tiles > div')].map(one => one.getBoundingClientRect());"
            "const most = Math.max(...all.map(one => one.right));"
            "return [...new Set(all.map(one => one.top))].map(top => most - Math.max(...all.filter(one => one.top === top).map(one => one.right))) })()"
        )
        assert max(ends) < 2, width


def test_on_a_phone_words_come_before_numbers(page, pages):
    rollout = first_with_failure(pages)
    page.size(390, 844)
    page.open(pages["shop"])
    assert page.texts(".rows th")[0].startswith("asked")
    page.open(pages["shop"], f"#rollout={rollout.id}")
    top = {
        name: page.eval(f"document.querySelector({selector!r}).getBoundingClientRect().top")
        for name, selector in {"prompt": ".turn.user", "score": ".score", "facts": ".more", "title": "h1"}.items()
    }
    assert sorted(top, key=top.get) == ["title", "prompt", "score", "facts"]


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
