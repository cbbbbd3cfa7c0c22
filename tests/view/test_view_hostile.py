"""What models write changes nothing in the viewer, and none of it is too long for it."""

import re
from dataclasses import replace

import pytest
from reading import called, one, write
from rollout_hookspecs import Image
from viewer import look

from rollout_plugins import Panel, hookimpl
from rollout_plugins.reading.panels import Panels
from rollout_plugins.testing import hostile_rollouts

NASTY = "[bold red]x[/] [@click=app.quit]y[/] [/] \x1b[31mred\x1b[0m \u202eevil\u202c \x07\x00 <script> [link=http://z]z[/link]"
SHOWN = "[bold red]x[/] [@click=app.quit]y[/] [/] ␛[31mred␛[0m \\u202eevil\\u202c ␇␀ <script> [link=http://z]z[/link]"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def nasty(index, **fields):
    return one(1, index, **{"prompt": ({"role": "user", "content": "hi"},), **fields})


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    made = [
        nasty(
            0,
            id=f"a{NASTY}",
            prompt=({"role": "user", "content": NASTY},),
            completion=({"role": NASTY, "content": NASTY}, {"role": "assistant", "content": "[/]"}),
            tool_calls=(replace(called(NASTY, **{NASTY: NASTY}), error=NASTY, status="error"),),
            rewards={NASTY: 1.0},
            columns={NASTY: NASTY},
            extra={"e": NASTY},
            marks={"m": NASTY},
            error=NASTY,
        ),
        nasty(1, id="../../etc/passwd"),
    ]
    return write(tmp_path_factory.mktemp("hostile"), made, trainer=NASTY, model=NASTY)


def test_it_shows_as_text_on_every_screen(hostile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def harmless(eye):
        assert not CONTROL.search(eye.text.replace("\n", ""))
        styles = [segment.style for strip in eye.app.screen._compositor.render_strips() for segment in strip]
        assert not any(style and (style.meta.get("@click") == "app.quit" or style.link) for style in styles)

    async def scenario(eye):
        await eye.sees("2 rollouts", "[bold red]x[/]")
        harmless(eye)
        await eye.press("i")
        await eye.sees("trainer", SHOWN)
        harmless(eye)
        await eye.press("q", "enter")
        await eye.sees("grp")
        harmless(eye)
        await eye.press("enter")
        await eye.sees("rollout 1 of 2", f"user       {SHOWN}", f"error      {SHOWN}")
        harmless(eye)
        await eye.press("z", "slash")
        await eye.type("[/]")
        await eye.press("enter")
        await eye.sees("“[/]”")
        harmless(eye)
        await eye.press("b")
        await eye.sees("2 answers")
        harmless(eye)
        await eye.press("q", "t")
        await eye.sees("one prompt")
        harmless(eye)
        await eye.press("q", "e")
        await eye.sees("wrote")
        harmless(eye)
        (file,) = tmp_path.iterdir()
        assert re.fullmatch(r"[A-Za-z0-9._-]+\.json", file.name)
        await eye.press("l", "e")
        await eye.until(lambda: len(list(tmp_path.iterdir())) == 2)
        await eye.press("q", "f")
        await eye.type("[bold]")
        await eye.press("enter")
        await eye.sees("where [bold]", "no column is named 'bold'")
        harmless(eye)

    look(hostile, scenario, size=(180, 50))


@pytest.mark.slow
def test_every_hostile_value_has_a_screen(tmp_path):
    made = [
        replace(rollout, id=f"h{n}", index=n, step=1, generation=1) for n, rollout in enumerate(hostile_rollouts())
    ]

    async def scenario(eye):
        await eye.sees(f"{len(made)} rollouts", "grp")
        await eye.press("enter")
        for place in range(1, len(made) + 1):
            await eye.sees(f"rollout {place} of {len(made)}")
            await eye.until(lambda: eye.app.screen._rollout is not None)
            assert not eye.app._notifications
            assert not CONTROL.search(eye.text.replace("\n", ""))
            await eye.press("l")

    look(write(tmp_path, made), scenario, filters={"step": 1})


LONG = {
    "ten thousand turns": tuple({"role": ("tool", "assistant")[n % 2], "content": f"turn {n}"} for n in range(10_000)),
    "a line of a megabyte": ({"role": "assistant", "content": "x" * 1_000_000},),
    "words of a megabyte": ({"role": "assistant", "content": "word and " * 110_000},),
    "wide characters": ({"role": "assistant", "content": "日本語 " * 100_000},),
    "a hundred thousand lines": ({"role": "assistant", "content": "a\n" * 100_000},),
    "a deep value": ({"role": "assistant", "content": "see", "tool_calls": [{"function": {"name": "f"}}]},),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.slow
def test_it_opens_at_once_however_long_it_is(tmp_path, name):
    deep = value = {}
    for _ in range(200):
        value["a"] = value = {}
    path = write(tmp_path, [nasty(0, completion=LONG[name], columns={"deep": deep})])

    async def scenario(eye):
        await eye.sees("1 rollout", "grp")
        await eye.press("enter")
        await eye.sees("rollout 1 of 1", "hi")
        await eye.press("z", "G", "ctrl+u", "g", "ctrl+d", "right_square_bracket")
        assert len(eye.lines) == 24

    look(path, scenario, filters={"step": 1})


def test_an_image_outside_the_run_is_not_opened(tmp_path):
    away = Image(hash="x", path="../../../../../../../../etc/hostname", width=4, height=4)
    path = write(tmp_path, [nasty(0, completion=({"role": "assistant", "content": [{"image": away}]},))])

    async def scenario(eye):
        await eye.sees("hostname 4x4")
        await eye.press("o")
        await eye.sees("no image of this rollout")

    look(path, scenario, rollout="r1.1.t1.0.0")


class Board:
    @hookimpl
    def show_rollout(self, rollout, run):
        return [
            Panel(title=NASTY, text="[bold]X[/] | O\n\x1b[2J", table=[["a", NASTY], [1, None]]),
            Panel(title="after", turn=0, text="the board after it"),
            Panel(title="instead", turn=1, replaces=True, image=b"no image at all"),
        ]


class Broken:
    @hookimpl
    def show_rollout(self, rollout):
        raise ValueError(NASTY)


def test_panels_of_plugins_stand_at_their_place_and_inject_nothing(tmp_path):
    said = ({"role": "assistant", "content": "first"}, {"role": "assistant", "content": "second"})
    path = write(tmp_path, [nasty(0, completion=said)])

    async def scenario(eye):
        await eye.sees("[bold]X[/] | O", "the board after it", "instead", "could not show this rollout")
        order = [eye.text.index(text) for text in ("[bold]X[/]", "first", "the board after it", "instead")]
        assert order == sorted(order)
        assert "second" not in eye.text
        await eye.press("z")
        await eye.sees("second")

    look(
        path,
        scenario,
        rollout="r1.1.t1.0.0",
        panels=Panels([Board(), Broken()], autoload=False).of,
        size=(100, 50),
    )


def test_what_is_notified_is_text_too(hostile):
    async def scenario(eye):
        await eye.sees("is not understood")
        assert "'[/bold]' oops (" in eye.said
        assert eye.text.count("[/bold]") == 3, "in the title, in the list, and as it was notified"

    look(hostile, scenario, filters={"where": "'[/bold]' oops ("}, size=(180, 30))
