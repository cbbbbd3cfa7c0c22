"""Run the benchmarks and put what they print between the markers of RESULTS.md.

    python -m benchmarks.readme [capture lock train ranks read report small scale checks learn faults] [--minutes 12]

`<!-- capture -->` and `<!-- /capture -->` are the markers; what stands between them is only ever produced. Without
names, all run. The rest of the file, and the results of what was not run, stay as they are.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
NAMES = ("capture", "lock", "train", "ranks", "read", "report", "small", "scale", "checks", "learn", "faults")
START = "# Results\n\nProduced by `python -m benchmarks.readme`; docs/benchmarks.md says what each figure means.\n"


def produced(name: str, minutes: float) -> str:
    """The tables of one benchmark, without whatever else its libraries print."""
    command = [
        sys.executable,
        "-m",
        f"benchmarks.{name}",
        *(["--minutes", f"{minutes:g}"] if name == "faults" else []),
    ]
    done = subprocess.run(command, cwd=RESULTS.parents[1], stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.startswith(("|", "**", "_"))]
    spaced = [f"\n{line}\n" if line.startswith("**") else line for line in lines]
    return "\n".join([f"`{' '.join(['python', *command[1:]])}`\n", *spaced])


def put(text: str, name: str, tables: str) -> str:
    """The text with the tables between their markers, which are added when they are not there."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if start not in text:
        text += f"\n## {name.capitalize()}\n\n{start}\n{end}\n"
    return re.sub(f"{start}.*?{end}", lambda _: f"{start}\n{tables}\n{end}", text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, default=12, help="for faults")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in NAMES]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    for name in given.names:
        tables = produced(name, given.minutes)
        RESULTS.write_text(put(RESULTS.read_text() if RESULTS.exists() else START, name, tables))


if __name__ == "__main__":
    main()
