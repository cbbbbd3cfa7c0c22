"""Make docs/report.png, the picture in the README: the top of `rollouts report` of the demo's run, in a real browser.

rollouts demo --out outputs/demo && python docs/report_picture.py outputs/demo
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from rollout_plugins import open_run
from rollout_plugins.report import write_report

WIDTH, HEIGHT, COLOURS = 1240, 1290, 128
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=5000",
]  # fmt: skip


def main(out: str) -> None:
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "report.html", Path(folder) / "shot.png"
        write_report(open_run(out), page)
        where = [f"--user-data-dir={folder}/browser", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}"]
        subprocess.run([browser, *FLAGS, *where, page.as_uri()], check=True, capture_output=True)
        picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        picture.save(Path(__file__).parent / "report.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
