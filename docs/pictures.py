"""Make the pictures in the README, of the demo's run: what the demo shows, the viewer, and the report in a real browser.

rollouts demo --out outputs/demo && python docs/pictures.py outputs/demo
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console

from rollout_plugins import open_run
from rollout_plugins.demo.command import report
from rollout_plugins.report import write_report
from rollout_plugins.view.app import Viewer

HERE = Path(__file__).parent
WIDTH = 112
SCREEN = (128, 32)
PAGE, COLOURS = (1240, 1290), 128
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=5000",
]  # fmt: skip


def drawn(svg: str) -> str:
    """With the reader's own monospace font, and the same names each time."""
    return re.sub(r"terminal-\d+", "view", re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def demo(out: str) -> None:
    """The end of `rollouts demo`, as the terminal had it."""
    run = open_run(out)
    seconds = run.attempts[0]["ended"] - run.attempts[0]["started"]
    console = Console(record=True, width=WIDTH, highlight=False, file=StringIO())
    console.print("[green]$[/] rollouts demo")
    console.print(report(run, Path(out), seconds, WIDTH))
    (HERE / "demo.svg").write_text(drawn(console.export_svg(title="rollouts demo", unique_id="demo")))


async def view(out: str) -> None:
    """`rollouts view`: the second step, and one of its rollouts beside the list."""
    app = Viewer(open_run(out), filters={"step": "2"})
    async with app.run_test(size=SCREEN) as pilot:
        await pilot.pause(3)
        await pilot.press("j")
        await pilot.pause(1)
        (HERE / "view.svg").write_text(drawn(app.export_screenshot(title=f"rollouts view {out}")))


def page(out: str) -> None:
    """The top of `rollouts report`."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder:
        file, shot = Path(folder) / "report.html", Path(folder) / "shot.png"
        write_report(open_run(out), file)
        where = [f"--user-data-dir={folder}/browser", "--window-size={},{}".format(*PAGE), f"--screenshot={shot}"]
        subprocess.run([browser, *FLAGS, *where, file.as_uri()], check=True, capture_output=True)
        picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        picture.save(HERE / "report.png", optimize=True)


def main(out: str) -> None:
    demo(out)
    asyncio.run(view(out))
    page(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
