"""A run of 100,000 rollouts by prompt, against another one, and scored again: how long it takes and how much memory.

    python -m benchmarks.learn [--rollouts 100000] [--dir DIR]

Groups of eight share a prompt, and prompts come back: a step has 128 of 2,048. Each question is asked in a fresh
process; `peak` is the largest resident size of it. Goals are in CPU seconds of all threads, start included, so that
other programs on the machine do not count. What `rescore` adds is what it takes beside the reward function, which
needs a millisecond for each rollout, as a verifier of mathematics does; judges take far longer.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Run

from benchmarks.measure import folder_bytes, goal, main, seconds, show, size, table
from benchmarks.million import BATCH, GROUP, NAMES, template
from rollout_plugins.store.arrow_rollouts import to_batch
from rollout_plugins.store.write import RunWriter, part_writer

PROMPTS = 2048
SCORED = 20_480
REWARD = """
import time

def verifier(completions, answer, **kwargs):
    until = time.thread_time() + 0.001 * len(completions)
    while time.thread_time() < until:
        pass
    return [float(len(text) % 2) for text in answer]
"""
ASK = """
import json, resource, sys, time
from rollout_plugins import open_run
a, b, reward = sys.argv[1:4]
started, cpu = time.perf_counter(), time.process_time()
{question}
wall, cpu = time.perf_counter() - started, time.process_time() - cpu
print(json.dumps([wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""
BY_PROMPT, COMPARE, SCORE, AGAIN = "by prompt", "against another run", "20,480 scored again", "the same from the cache"
QUESTIONS = {
    BY_PROMPT: """
from rollout_plugins.learn.prompts import prompts_of
assert len(prompts_of(open_run(a), "correct", 0.5)) == PROMPTS""",
    COMPARE: """
from rollout_plugins.learn.comparison import compare
assert len(compare(open_run(a), open_run(b))) == PROMPTS""",
    SCORE: """
from rollout_plugins.learn.disagreement import disagreement
from rollout_plugins.learn.rescore import rescore
found = rescore(open_run(a), reward, against="correct", again=True, step=STEPS)
disagreement(found)""",
    AGAIN: """
from rollout_plugins.learn.rescore import rescore
assert rescore(open_run(a), reward, against="correct", step=STEPS).seconds == 0""",
}


def write(folder: Path, rollouts: int, shift: float) -> None:
    """A run as `RunWriter` leaves it behind, one file for eight steps."""
    run = Run(id=folder.name, dir=str(folder), trainer="GRPOTrainer", model="synthetic", reward_names=NAMES)
    words, rng = random.Random(0), np.random.default_rng(int(shift * 10))
    asked = [template(words, number) for number in range(PROMPTS)]
    rows = [template(words, number) for number in range(PROMPTS * GROUP)]
    base = to_batch(
        [
            replace(row, prompt=asked[n // GROUP].prompt, columns=asked[n // GROUP].columns)
            for n, row in enumerate(rows)
        ],
        [],
    )
    parts = folder / "data" / "train"
    parts.mkdir(parents=True)
    for part, start in enumerate(range(0, rollouts, 8 * BATCH)):
        with part_writer(parts / f"001-00000-{part:06d}.parquet", base.schema) as add:
            for first in range(start, min(start + 8 * BATCH, rollouts), BATCH):
                count = min(BATCH, rollouts - first)
                add(pa.Table.from_batches([step_of(base, first // BATCH, run.id, shift, rng).slice(0, count)]))
    RunWriter(run).write_run({"rollouts": rollouts}, ended=True)


def step_of(base: pa.RecordBatch, step: int, name: str, shift: float, rng: np.random.Generator) -> pa.RecordBatch:
    prompts = (step * (BATCH // GROUP) + np.arange(BATCH // GROUP)) % PROMPTS
    rows = (prompts[:, None] * GROUP + np.arange(GROUP)).ravel()
    index = np.arange(BATCH)
    correct = (rng.random(BATCH) < 0.4 + 0.2 * shift).astype(float)
    columns = {
        "id": [f"{name}.1.t{step}.0.{i}" for i in index],
        "run_id": [name] * BATCH,
        "step": np.full(BATCH, step + 1),
        "policy_step": np.full(BATCH, step),
        "generation": np.full(BATCH, step),
        "index": index,
        "group": index // GROUP,
        "group_size": np.full(BATCH, GROUP),
        "reward": correct,
        "advantage": correct - 0.5,
        "rewards": [[{"name": NAMES[0], "value": value}, {"name": NAMES[1], "value": 0.0}] for value in correct],
    }
    taken = base.take(pa.array(rows))
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else taken.column(place)
        for place, field in enumerate(base.schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=base.schema)


def ask(label: str, folder: Path) -> list[float]:
    question = QUESTIONS[label].replace("PROMPTS", str(PROMPTS)).replace("STEPS", f"range(1, {SCORED // BATCH + 1})")
    words = [str(folder / name) for name in ("a", "b", "verifier.py:verifier")]
    command = [sys.executable, "-c", ASK.replace("{question}", question), *words]
    found: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="where the runs are kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learn-") as temporary:
        folder = options.dir or Path(temporary)
        for name, shift in (("a", 0.0), ("b", 0.5)):
            if not (folder / name).exists():
                write(folder / name, options.rollouts, shift)
        (folder / "verifier.py").write_text(REWARD)
        found = {}
        for label in QUESTIONS:
            show(f"asking {label}")
            found[label] = min((ask(label, folder) for _ in range(2)), key=lambda answer: answer[0])
        rows = [[label, seconds(wall), seconds(cpu), size(peak)] for label, (wall, cpu, peak) in found.items()]
        show(
            table(
                f"{options.rollouts:,} rollouts, {size(folder_bytes(folder / 'a'))}", ["", "took", "CPU", "peak"], rows
            )
        )
        function = 0.001 * (SCORED // BATCH * BATCH)
        goals = [
            goal("by prompt, CPU seconds", found[BY_PROMPT][1], 10),
            goal("against another run, CPU seconds", found[COMPARE][1], 10),
            goal("most memory, MB", max(peak for _, _, peak in found.values()) / 1e6, 1000),
            goal("rescore beside the function, share of its time", (found[SCORE][1] - function) / function, 0.2),
        ]
        show(table("Goals", ["goal", "measured", "wanted", ""], goals))


if __name__ == "__main__":
    main(run)
