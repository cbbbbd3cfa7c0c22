"""Make the pictures of the documentation from the demo's run: the viewer, still and moving, and the report in a browser.

rollouts demo --out outputs/demo && python docs/pictures.py outputs/demo
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from rollout_plugins import Rollout, StoredRun, open_run
from rollout_plugins.report import write_report
from rollout_plugins.view.app import Viewer

HERE = Path(__file__).parent
SCREEN = (128, 26)
SECONDS = 5
"""How long the moving picture shows each screen."""
PAGE, COLOURS = (1240, 1290), 128
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=5000",
]  # fmt: skip


def subject(run: StoredRun) -> Rollout:
    """The rollout to show: an early one with calls, of a prompt that comes at many steps, from a mixed group."""
    steps: dict[str, set[int]] = {}
    groups: dict[tuple[int, int], list[Rollout]] = {}
    for rollout in run.rollouts(split="train"):
        steps.setdefault(str(rollout.prompt), set()).add(rollout.step)
        groups.setdefault((rollout.generation, rollout.group), []).append(rollout)
    mixed = [group for group in groups.values() if min(map(worth, group)) < 0.3 and max(map(worth, group)) == 1]
    chosen = max(mixed, key=lambda group: (len(steps[str(group[0].prompt)]), -group[0].step))
    return max(chosen, key=lambda rollout: (len({call.status for call in rollout.tool_calls}), rollout.index))


def worth(rollout: Rollout) -> float:
    return rollout.reward or 0.0


async def viewer(run: StoredRun, title: str) -> None:
    """`rollouts view`: a step's rollouts, the siblings of one, and the worst answers to its prompt over time."""
    one = subject(run)
    app = Viewer(run, filters={"step": str(one.step)})
    screens = []
    async with app.run_test(size=SCREEN) as pilot:
        await pilot.pause(3)
        await pilot.press(*"j" * (one.index % len(list(run.rollouts(step=one.step)))))
        for keys in ("", "b", "qtmm"):
            await pilot.press(*keys)
            await pilot.pause(2)
            screens.append(app.export_screenshot(title=title))
    drawn = [named(svg, f"screen-{number}") for number, svg in enumerate(screens)]
    (HERE / "siblings.svg").write_text(drawn[1])
    (HERE / "tour.svg").write_text(moving(drawn))


def named(svg: str, name: str) -> str:
    """With the reader's own monospace font, and the same names each time."""
    return re.sub(r"terminal-\d+", name, re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def moving(screens: list[str]) -> str:
    """One picture that shows them in turn; where nothing may move, the first."""
    box = re.search(r'viewBox="([^"]+)"', screens[0])[1]
    share = 100 / len(screens)
    style = (
        f"@keyframes turn {{ 0% {{ opacity: 1 }} {share:.3f}%, 100% {{ opacity: 0 }} }} "
        f".turn {{ opacity: 0; animation: turn {SECONDS * len(screens)}s step-end infinite }} "
        ".turn:first-of-type { opacity: 1 } "
        "@media (prefers-reduced-motion: reduce) { .turn { animation: none } }"
    )
    turns = "".join(
        f'<g class="turn" style="animation-delay: {number * SECONDS - (SECONDS * len(screens) if number else 0)}s">{svg}</g>'
        for number, svg in enumerate(screens)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}"><style>{style}</style>{turns}</svg>'


def report(run: StoredRun) -> None:
    """`rollouts report`: its top, and the page of one rollout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        write_report(run, file)
        photograph(file.as_uri(), HERE / "report.png")
        photograph(f"{file.as_uri()}#rollout={subject(run).id}", HERE / "rollout.png")


def photograph(address: str, file: Path) -> None:
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        where = [f"--user-data-dir={folder}/browser", "--window-size={},{}".format(*PAGE), f"--screenshot={shot}"]
        subprocess.run([browser, *FLAGS, *where, address], check=True, capture_output=True)
        picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        picture.save(file, optimize=True)


def main(out: str) -> None:
    run = open_run(out)
    asyncio.run(viewer(run, f"rollouts view {out}"))
    report(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
