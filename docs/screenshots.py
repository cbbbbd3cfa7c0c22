"""Make docs/view.svg, the picture of the viewer in the README: the demo's run, a step of it and one of its rollouts.

rollouts demo --out outputs/demo && python docs/screenshots.py outputs/demo
"""

import asyncio
import re
import sys
from pathlib import Path

from rollout_plugins import open_run
from rollout_plugins.view.app import Viewer

SIZE = (128, 32)
STEP = "2"
KEYS = ("j",)


async def picture(out: str) -> str:
    app = Viewer(open_run(out), filters={"step": STEP})
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(3)
        for key in KEYS:
            await pilot.press(key)
            await pilot.pause(1)
        return app.export_screenshot(title=f"rollouts view {out}")


def main(out: str) -> None:
    drawn = asyncio.run(picture(out))
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # the reader's own monospace font
    drawn = re.sub(r"terminal-\d+", "view", drawn)
    (Path(__file__).parent / "view.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
