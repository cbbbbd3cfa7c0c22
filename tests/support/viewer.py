"""What the viewer's tests share: real keys into the real app, and what is on its screen."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from rollout_plugins import open_run
from rollout_plugins.view.app import Viewer

_SOON = 0.06
"""A timer that ends within these seconds belongs to what is under way: a preview waits 0.05 for the cursor to rest."""


class Threads(ThreadPoolExecutor):
    """Where the viewer's jobs run; knows those that are not done, even if nobody waits for them any more."""

    def __init__(self):
        super().__init__()
        self.running = set()

    def submit(self, *args, **kwargs):
        future = super().submit(*args, **kwargs)
        self.running.add(future)
        future.add_done_callback(self.running.discard)
        return future


class Eye:
    """A viewer that is driven by keys."""

    def __init__(self, app, pilot, threads):
        self.app, self.pilot, self._threads = app, pilot, threads

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
        """Press one after the other, each when all that the one before set off is done."""
        for key in keys:
            await self.app._press_keys([key])
            await self.rests()

    async def type(self, text):
        await self.press(*text)

    async def click(self, widget, offset):
        await self.pilot.click(widget, offset=offset)
        await self.rests()

    async def rests(self):
        """Wait until no thread is at work, no message is under way and the screen shows what came of them."""
        while self._is_busy():
            await self.moment(0.002)

    def _is_busy(self):
        loop = asyncio.get_running_loop()
        due = loop.time() + _SOON
        return (
            bool(self._threads.running or loop._ready or (self.app._running and self.app.screen._dirty_widgets))
            or any(not worker.is_finished for worker in self.app.workers)
            or any(not timer.cancelled() and timer.when() < due for timer in loop._scheduled)
        )

    async def moment(self, seconds=0.02):
        """Let the viewer go on."""
        await asyncio.sleep(seconds)
        if self.app._running:
            self.app.screen._on_timer_update()

    async def sees(self, *texts):
        """Wait until all of these are on the screen, and nothing is under way any more."""
        await self.until(lambda: all(map(self.text.__contains__, texts)), texts)
        await self.rests()

    async def sees_not(self, *texts):
        await self.until(lambda: not any(map(self.text.__contains__, texts)), texts)

    async def until(self, condition, what="", seconds=600.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what}\n{self.text}"
            await self.moment()

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
        threads = Threads()
        asyncio.get_running_loop().set_default_executor(threads)
        app = Viewer(open_run(run), **options)
        app.NOTIFICATION_TIMEOUT = 3600  # what is said stays until it was read
        async with app.run_test(size=size, notifications=True) as pilot:
            await scenario(Eye(app, pilot, threads))

    asyncio.run(main())
