"""Make docs/demo.svg, the picture in the README: what `rollouts demo` showed, as the terminal had it.

rollouts demo --out outputs/demo && python docs/picture.py outputs/demo
"""

import re
import sys
from pathlib import Path

from rich.console import Console

from rollout_plugins import open_run
from rollout_plugins.demo.show import report

WIDTH = 112


def main(out: str) -> None:
    run = open_run(out)
    seconds = run.attempts[0]["ended"] - run.attempts[0]["started"]
    console = Console(record=True, width=WIDTH, highlight=False, file=open("/dev/null", "w"))
    console.print("[green]$[/] rollouts demo")
    console.print(report(run, Path(out), seconds, WIDTH))
    picture = console.export_svg(title="rollouts demo", unique_id="demo")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # the reader's own monospace font
    (Path(__file__).parent / "demo.svg").write_text(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
