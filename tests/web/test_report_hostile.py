"""Whatever a model writes shows as text: no script runs, the policy is never tried, nothing is asked of a network."""

from __future__ import annotations

import json

import pytest
from chromium import browser, needs_chromium
from report_rig import hostile
from rollout_hookspecs import Image, Panel, Run, ToolCall

from rollout_plugins import hookimpl, open_run
from rollout_plugins.report import write_report
from rollout_plugins.store.write import RunWriter
from rollout_plugins.testing import make_rollout

pytestmark = [needs_chromium, pytest.mark.slow]
MARK = "hacked"
ATTACKS = [
    f"<script>window.{MARK} = 1; alert(1)</script>",
    f"<img src=x onerror=\"window.{MARK} = 2\"><svg onload=\"window.{MARK} = 3\"><circle/></svg>",
    f"\"><iframe srcdoc='<script>parent.{MARK} = 4</script>'></iframe>",
    f"<a href=\"javascript:window.{MARK} = 5\">click</a> javascript:window.{MARK}=5",
    f"</script><!--<script>window.{MARK} = 6</script>-->",
    "</style><style>* { display: none !important; background: url(https://example.com/x) }</style>",
    "<link rel=stylesheet href=https://example.com/a.css><base href=https://example.com/><meta http-equiv=refresh content='0;url=https://example.com'>",
    f"${{window.{MARK} = 7}} {{{{constructor.constructor('window.{MARK} = 8')()}}}} <%= x %> `${{alert(1)}}`",
    f"<form action=https://example.com><button formaction=javascript:window.{MARK}=9>go</button></form>",
    f"<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=window.{MARK}=10&gt;\">",
    "<details open ontoggle=window.hacked=11><video autoplay onplay=window.hacked=12 src=data:video/mp4,>",
    "data:text/html,<script>parent.hacked=13</script>",
    "\x00\x1b[2J\x1b]8;;https://example.com\x07 \u202egnp.exe\u202c \u2028 \u2029 \ufeff half \ud800 \U000e0041",
    "__proto__", "constructor", "toString", "hasOwnProperty",
    "=HYPERLINK(\"https://example.com\")", "x" * 1_000_000, "line\n" * 50_000, "🧑‍🚀" * 5_000, "ม็็็็็็็็็็็็็็็็็" * 50,
]  # fmt: skip


def everywhere(text, number):
    """A rollout that holds the text in every field that holds text."""
    call = {"type": "function", "id": text, "function": {"name": text, "arguments": {text: text}}}
    image = Image(hash=text, path=text, uri=text, note=text, width=3, height=3)
    return make_rollout(
        id=f"{number}{text[:500]}", index=number, group=number // 4, group_size=4, finish=text, error=text, rewards={text[:500]: 0.5, "plain": 1.0}, reward=number / 9,
        prompt=({"role": "system", "content": text}, {"role": text, "content": [{"type": "text", "text": text}, {"type": "image", "image": image}]}),
        completion=(
            {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
            {"role": "tool", "content": text}, {"role": "assistant", "content": text + text[:100]},
        ),
        tool_calls=(ToolCall(name=text, arguments={text: text}, turn=0, reply=1, result=text, error=text, status="error"),),
        images=(image,), columns={text[:2000]: text}, extra={text[:2000]: {text[:2000]: text}}, marks={text[:2000]: text},
    )  # fmt: skip


class Everything:
    """A plugin that shows what the model said."""

    @hookimpl
    def show_rollout(self, rollout):
        text = rollout.prompt[0]["content"] if isinstance(rollout.prompt[0], dict) else ""
        return [
            Panel(title=text, text=text, table=[[text, text], [text, 1]]),
            Panel(title=text, text=text, turn=0, image=b"\x89PNG" + text.encode("utf-8", "replace")),
        ]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    made = [everywhere(text, number) for number, text in enumerate(ATTACKS)]
    text = ATTACKS[0]
    tools = ({"type": "function", "function": {"name": text, "description": text, "parameters": {text: text}}},)
    names = tuple({name for one in made for name in one.rewards})
    run = Run(
        id=ATTACKS[4], dir=str(folder / "r1"), model=ATTACKS[1], trainer=ATTACKS[2], reward_names=names, tools=tools,
        chat_template=ATTACKS[7], versions={text: text}, settings={text: {text: text}},
    )  # fmt: skip
    writer = RunWriter(run)
    writer.write("train", made)
    writer.close()
    path = folder / "r1" / "data" / "train" / "<img src=x onerror=hacked=20>-0000-1.parquet"
    stored = open_run(folder)
    stored.annotate("judge", [{"id": made[0].id, "note": text}])
    path.write_bytes(b"")
    write_report(
        stored,
        folder / "report.html",
        plugins=[Everything()],
        where="index >= 0 or '<img src=x onerror=hacked=21>' = ''",
    )
    return folder / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(tab):
    tab.faults.clear()
    tab.asked.clear()
    yield tab
    assert tab.eval(f"window.{MARK} === undefined")
    assert tab.eval("Object.keys(Object.prototype).length") == 0
    assert tab.faults == []
    assert {address.partition(":")[0] for address in tab.asked} <= {"file", "about"}
    assert tab.count("script") == 2
    assert (
        tab.count(
            "iframe, form, base, object, embed, svg, video, link[rel=stylesheet], style:not(head > style), a[href^='javascript']"
        )
        == 0
    )
    assert tab.eval(
        "[...document.querySelectorAll('*')].every(e => [...e.attributes].every(a => !a.name.startsWith('on')))"
    )


def hidden(page):
    """Characters that a browser would obey or hide, in what is shown."""
    return page.eval(
        "(document.body.innerText.match(/[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]/g) || []).filter(c => !/[\\ud800-\\udfff]/.test(c)).length"
    )


def sideways(page):
    """What makes the whole page scroll sideways."""
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    beyond = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest('.scroll'))"
    return page.eval(f"{wide} ? {beyond}.map(e => e.outerHTML.slice(0, 100)) : []")


def test_the_overview_with_everything_unfolded(page, attacked):
    page.open(attacked)
    page.eval("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.eval("document.querySelectorAll('.picker input').forEach(one => one.checked || one.click())")
    page.wait("document.querySelectorAll('.rows th').length > 20")
    assert "<iframe srcdoc" in page.text(".title")
    assert "<script>window.hacked" in page.text(".whole-facts")
    for at in range(0, 20, 3):
        page.eval(f"document.querySelectorAll('.rows th button')[{at}].click()")
    page.write("#filter", "<script>")
    page.wait("document.querySelectorAll('tr[data-place]').length > 0")
    assert hidden(page) == 0
    assert not sideways(page)


@pytest.mark.parametrize("view", ["conversation", "group", "time"])
def test_every_attack_in_every_field_and_view(page, attacked, view):
    page.open(attacked)
    for place in range(len(ATTACKS)):
        link = page.eval(
            f"(() => {{ document.querySelector('.rows').scrollTop = {place * 34}; return true }})()"
        ) and page.wait(f"document.querySelector('tr[data-place=\"{place}\"] a')?.hash")
        page.eval(f"location.hash = {json.dumps(link + ('' if view == 'conversation' else '&view=' + view))}")
        page.wait("document.querySelector('.rollout') && !document.querySelector('.missing')")
        page.eval("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.eval("document.querySelectorAll('.turn .minor button[aria-expanded=false]').forEach(one => one.click())")
        assert page.wait("document.querySelector('.rollout').innerText.length") > 100
        assert hidden(page) == 0
        assert not sideways(page)
        page.eval("history.back()")
        page.wait("document.querySelector('.rows')")


def test_the_text_is_the_text(page, attacked):
    page.open(attacked)
    page.eval("document.querySelector('tr[data-place=\"4\"] a').click()")
    assert page.text(".turn.assistant .body").count(ATTACKS[4]) >= 2
    page.eval("history.back()")
    page.wait("document.querySelector('.rows')")
    page.eval("document.querySelector('tr[data-place=\"12\"] a').click()")
    said = page.text(".turn.assistant .body")
    assert (
        "␀␛[2J␛]8;;https://example.com␇ \\u202egnp.exe\\u202c \\u2028 \\u2029 \\ufeff half \\ud800 \\U000e0041" in said
    )


def test_everything_the_kit_for_plugins_calls_hostile(page, tmp_path):
    stored = hostile(tmp_path)
    write_report(stored, tmp_path / "report.html")
    page.open(tmp_path / "report.html")
    for one in stored.rollouts():
        page.eval(f"location.hash = '#' + new URLSearchParams({{rollout: {json.dumps(one.id)}}})")
        page.wait(f"document.querySelector('.rollout .id')?.innerText === {json.dumps(one.id)}")
    assert hidden(page) == 0


def test_ten_thousand_turns_and_a_line_of_a_megabyte_open_at_once(page, tmp_path):
    long = [{"role": "assistant" if at % 2 else "user", "content": f"turn {at}"} for at in range(10_000)]
    stored = hostile(
        tmp_path, make_rollout(id="long", completion=long), make_rollout(id="wide", completion="y" * 1_000_000)
    )
    write_report(stored, tmp_path / "report.html")
    ids = {(len(one.completion), len(str(one.completion))): one.id for one in stored.rollouts()}
    page.open(tmp_path / "report.html", f"#rollout={ids[max(ids)]}")
    assert page.count(".turn") < 500
    assert "turn 9999" in page.text(".turn:last-of-type")
    page.click(".between button")
    page.wait("document.querySelectorAll('.turn').length > 500")
    page.open(tmp_path / "report.html", f"#rollout={ids[max(ids, key=lambda size: size[1] if size[0] == 1 else 0)]}")
    assert "show 994,000 more characters" in page.text(".turn.assistant .more")
    assert len(page.text(".turn.assistant")) < 10_000
    page.click(".turn.assistant .more")
    page.wait("document.querySelector('.turn.assistant').innerText.length > 1e6")
