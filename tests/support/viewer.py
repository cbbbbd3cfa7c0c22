"""What the viewer's tests share: real keys into the real app, and what is on its screen."""

from __future__ import annotations

import asyncio
import time

from rollout_plugins import open_run
from rollout_plugins.view.app import Viewer


class Eye:
    """A viewer that is driven by keys."""

    def __init__(self, app, pilot):
        self.app, self.pilot = app, pilot

    @property
    def lines(self):
        """The screen as a person sees it, without colours."""
        return ["".join(segment.text for segment in strip) for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.lines)

    @property
    def said(self):
        """What was notified last."""
        return [note.message for note in self.app._notifications][-1]

    @property
    def page(self):
        return type(self.app.screen).__name__

    async def press(self, *keys):
        await self.pilot.press(*keys)

    async def type(self, text):
        await self.pilot.press(*text)

    async def sees(self, *texts, seconds=120.0):
        """Wait until all of these are on the screen."""
        end = time.monotonic() + seconds
        while not all(map(self.text.__contains__, texts)):
            assert time.monotonic() < end, f"{texts} are not all in\n{self.text}"
            await self.pilot.pause(0.02)
        await self.pilot.pause()

    async def sees_not(self, *texts, seconds=120.0):
        end = time.monotonic() + seconds
        while any(map(self.text.__contains__, texts)):
            assert time.monotonic() < end, f"one of {texts} is in\n{self.text}"
            await self.pilot.pause(0.02)

    async def until(self, condition, seconds=120.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.text
            await self.pilot.pause(0.02)

    def column(self, label):
        """The cells under a heading, as text."""
        head = next(
            n for n, line in enumerate(self.lines) if label in line.split() and {"#", "spread"} & set(line.split())
        )
        end = self.lines[head].index(label) + len(label)
        cells = [line[:end] for line in self.lines[head + 1 : -1]]
        return [cell.split()[-1] for cell in cells if len(cell.rstrip()) == end and cell.strip() != "▌"]


def look(run, scenario, *, size=(80, 24), **options):
    """Open a run in a viewer and do what the scenario does."""

    async def main():
        app = Viewer(open_run(run), **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await scenario(Eye(app, pilot))

    asyncio.run(main())
