"""The report by keyboard alone, in the dark, on a phone and on paper."""

from __future__ import annotations

import pytest
from chromium import needs_chromium
from report_page import first_with_failure, wait_listed

pytestmark = [needs_chromium, pytest.mark.slow]


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


def test_a_chart_keeps_its_height_while_it_is_read(page):
    heights = "[...document.querySelectorAll('.chart figcaption')].map(one => one.offsetHeight)"
    before = page.eval(heights)
    x, y, width, height = page.box(".plot .u-over")
    for share in (0.1, 0.5, 0.9):
        page.mouse("mouseMoved", x + share * width, y + height / 2)
        page.wait("document.querySelector('.chart .head').innerText.includes('step')")
        assert page.eval(heights) == before


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
