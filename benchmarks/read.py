"""How long a person waits for answers from a run of a million rollouts, beside the same rollouts as JSONL.

    python -m benchmarks.read [--rollouts 1000000] [--dir DIR]

Each question is asked in a fresh process. `first` is from opening the run to the answer, `again` the same question put
to the same open run once more, `peak` the largest resident size of the process.

The JSONL files are one for each step, with the keys verl dumps. `read through` is a loop that parses them with orjson
and stops as soon as it can. `all loaded` is what verl's viewer does: every line of every file parsed into a list, with
whatever is no text turned into JSON text; each of its questions is asked after that, with everything in memory.
`viewer` is from starting the command to rows on an 80 by 24 terminal.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import orjson

from benchmarks import million
from benchmarks.measure import folder_bytes, main, seconds, show, size, table
from rollout_plugins import open_run

RARE = "zyzzyva 77"
OURS = {
    "stats, step by step": "rows = run.stats(); assert sum(r['rollouts'] for r in rows) == len(run)",
    "filter and sort, first 10": """
    found = list(run.rollouts(where='reward < 0 and calls > 1', order='-completion_tokens', limit=10))
    assert len(found) == 10""",
    "best 3 of the last step": "assert len(list(run.rollouts(step='last', order='-reward', limit=3))) == 3",
    "one by id": "assert run.get(ID).id == ID",
    "its group": "assert len(list(run.siblings(ID))) == 8",
    "SQL: mean reward by step": """assert run.sql(
        'select step, avg(reward) from rollouts group by step').num_rows == STEPS""",
    "text search, first 5": f"assert len(list(run.rollouts(search={RARE!r}, limit=5))) == 5",
    "text search, how many": f"assert run.count(search={RARE!r}) > 5",
}
THEIRS = {
    "stats, step by step": "n = Counter(r['step'] for r in rows()); assert len(n) == STEPS",
    "filter and sort, first 10": """
    some = (r for r in rows() if num(r['score']) < 0 and num(r['calls']) > 1)
    found = nlargest(10, some, key=lambda r: num(r['tokens']))
    assert len(found) == 10""",
    "best 3 of the last step": "assert len(nlargest(3, last(), key=lambda r: num(r['score']))) == 3",
    "one by id": "assert next(r for r in rows() if r['id'] == ID)['id'] == ID",
    "its group": """one = next(r for r in rows() if r['id'] == ID)
    assert sum(r['step'] == one['step'] and r['group'] == one['group'] for r in rows()) == 8""",
    "SQL: mean reward by step": """sums, n = Counter(), Counter()
    for r in rows():
        sums[r['step']] += num(r['score']); n[r['step']] += 1
    assert len({step: sums[step] / n[step] for step in n}) == STEPS""",
    "text search, first 5": f"assert len(list(islice((r for r in rows() if has(r, {RARE!r})), 5))) == 5",
    "text search, how many": f"assert sum(has(r, {RARE!r}) for r in rows()) > 5",
}
HEAD = """
import json, sys, time
from collections import Counter
from heapq import nlargest
from itertools import chain, islice
from pathlib import Path
place, ID, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
started, busy = time.perf_counter(), time.process_time()
"""
OPEN = "from rollout_plugins import open_run\nrun = open_run(place)\n"
FILES = """
files = sorted(Path(place).glob("*.jsonl"), key=lambda path: int(path.stem))
def has(row, text):
    return text in row["output"] or text in row["input"]
"""
THROUGH = """
import orjson
num = float
def lines(path):
    with path.open("rb") as file:
        yield from map(orjson.loads, file)
def rows():
    return chain.from_iterable(map(lines, files))
def last():
    return lines(files[-1])
"""
LOADED = """
num = float
def load(path):
    with path.open(encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    for row in found:
        row.update({k: json.dumps(v, ensure_ascii=False, indent=4) for k, v in row.items() if not isinstance(v, str)})
    return found
steps = [load(path) for path in files]
print("loaded", time.perf_counter() - started, sep="\t")
started = time.perf_counter()
def rows():
    return chain.from_iterable(steps)
def last():
    return steps[-1]
"""
ASK = """
def ask():
    {question}
ask()
first, cpu = time.perf_counter() - started, time.process_time() - busy
started = time.perf_counter()
ask()
again = time.perf_counter() - started
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print({label!r}, first, again, peak * 1024, cpu, sep="\t")
started, busy = time.perf_counter(), time.process_time()
"""
COLUMNS = """id, step, "group", reward as score, "reward/correct" as correct, "reward/format" as format, calls,
    completion_tokens as tokens, columns as gts,
    array_to_string(list_transform(prompt, lambda m: m.role || ': ' || coalesce(m.content, '')), chr(10)) as input,
    array_to_string(list_transform(completion, lambda m: m.role || ': ' || coalesce(m.content, '')), chr(10))
    as output"""


def dump(run: Path, folder: Path, steps: int) -> None:
    """The run as JSON lines, a file for each step."""
    folder.mkdir()
    stored = open_run(run)
    for step in range(1, steps + 1):
        rows = stored.sql(f"select {COLUMNS} from rollouts where step = {step} order by index").to_pylist()
        (folder / f"{step}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def asked(place: Path, ident: str, steps: int, code: str) -> dict[str, list[float]]:
    """What a process says of each question it was asked."""
    command = [sys.executable, "-c", HEAD + code, str(place), ident, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {label: list(map(float, numbers)) for label, *numbers in lines}


def question(questions: dict[str, str], label: str) -> str:
    return ASK.format(question=questions[label], label=label)


def compared(run: Path, lines: Path, ident: str, steps: int) -> list[list[Any]]:
    everything = "".join(question(THEIRS, label) for label in THEIRS)
    loaded = asked(lines, ident, steps, FILES + LOADED + everything)
    rows = []
    for label in OURS:
        first, again, peak, _ = asked(run, ident, steps, OPEN + question(OURS, label))[label]
        through = asked(lines, ident, steps, FILES + THROUGH + question(THEIRS, label))[label]
        show(f"asked {label}")
        shown = [seconds(first), seconds(again), size(peak), seconds(through[0]), size(through[2])]
        rows.append([label, *shown, seconds(loaded[label][0]), size(loaded[label][2])])
    load = loaded["loaded"][0]
    rows.append(
        [
            "viewer: rows on the screen",
            seconds(first_screen(run, last_step(run))),
            *["-"] * 4,
            f"{seconds(load)} to load",
            "",
        ]
    )
    return rows


def last_step(run: Path) -> bytes:
    return str(max(open_run(run).steps)).encode()


def first_screen(run: Path, last: bytes) -> float:
    """From starting `rollouts view` to the last step's row on the screen."""
    started = time.perf_counter()
    process, terminal = pty.fork()
    if not process:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
        os.execv(sys.executable, [sys.executable, "-m", "rollout_plugins.cli.main", "view", str(run)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        return _until(terminal, last, started)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _until(terminal: int, wanted: bytes, started: float) -> float:
    seen = b""
    while time.perf_counter() - started < 60:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
            if wanted in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen):
                return time.perf_counter() - started
    raise RuntimeError(f"the viewer showed no step within a minute: {seen[-2000:]!r}")


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, help="where the run and the JSON lines are kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="read-") as temporary:
        folder = options.dir or Path(temporary)
        stored, lines = folder / "million", folder / "jsonl"
        steps = -(-options.rollouts // million.BATCH)
        if not stored.exists():
            million.write(stored, options.rollouts)
        if not lines.exists():
            dump(stored, lines, steps)
        ident = f"million.1.t{steps // 2}.0.77"
        rows = compared(stored, lines, ident, steps)
        sizes = f"{size(folder_bytes(stored))} beside {size(folder_bytes(lines))} of JSONL"
        head = ["", "first", "again", "peak", "JSONL read through", "peak", "all loaded, as verl's viewer", "peak"]
        show(table(f"{options.rollouts:,} rollouts, {sizes}", head, rows))


if __name__ == "__main__":
    main(run)
