"""How long `rollouts report` takes for a run of 100,000 rollouts, and how large its page is.

    python -m benchmarks.report [--rollouts 100000] [--dir DIR]

`wall` is from before the first import until the file is there, without the time in which the process could have run
and the machine ran something else. Listed are as many rollouts as by default, and ten times as many.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import million
from benchmarks.measure import goal, main, seconds, show, size, table
from rollout_plugins.web.page import LIMIT

SECONDS, BYTES = 10, 8_000_000


WRITE = """
import sys
from benchmarks.measure import Clock
clock = Clock()
from rollout_plugins.cli.main import main
main(["report", *sys.argv[1:]])
print(clock.undisturbed, clock.cpu)
"""


def written(run: Path, page: Path, limit: int) -> tuple[float, float, int, str]:
    """Wall time without waiting for a processor, CPU, bytes and how many rollouts it says there are in the page."""
    command = [sys.executable, "-c", WRITE, str(run), "-o", str(page), "--limit", str(limit)]
    said, numbers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    wall, cpu = map(float, numbers.split())
    return wall, cpu, page.stat().st_size, said.split()[0]


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="where the run is kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="report-") as temporary:
        stored = (options.dir or Path(temporary)) / "run"
        if not stored.exists():
            million.write(stored, options.rollouts)
        measured = [written(stored, Path(temporary) / f"{limit}.html", limit) for limit in (LIMIT, 10 * LIMIT)]
    rows = [[listed, seconds(wall), seconds(cpu), size(made)] for wall, cpu, made, listed in measured]
    show(table(f"A report of {options.rollouts:,} rollouts", ["listed", "wall", "CPU", "page"], rows))
    wanted = [
        ["by default", *goal("seconds", measured[0][0], SECONDS)],
        ["by default", *goal("MB", measured[0][2] / 1e6, BYTES / 1e6)],
        ["ten times as many", *goal("MB", measured[1][2] / 1e6, BYTES / 1e6)],
    ]
    show(table("Goals of the report", ["listed", "goal", "measured", "wanted", ""], wanted))


if __name__ == "__main__":
    main(run)
