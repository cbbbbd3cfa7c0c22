"""How long `rollouts export --to sft, dpo, kto, prompts` takes, and how much memory.

    python -m benchmarks.learn_exports [--rollouts 100000] [--dir DIR]

The run has groups of eight answers to one prompt, up to three tool calls each, two schemas of tools, and scores of 0
to 1. Each export runs in a fresh process. `peak` is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Rollout, Run

from benchmarks.measure import goal, main, seconds, show, size, table
from benchmarks.million import GROUP, NAMES, template
from rollout_plugins.learn.training_data import export_training_data
from rollout_plugins.reading.runs import open_run
from rollout_plugins.store.arrow_rollouts import to_batch
from rollout_plugins.store.write import ROW_GROUP, RunWriter, part_writer

MOST_SECONDS, MOST_MEMORY = 10.0, 1e9
KINDS = ("sft", "dpo", "kto", "prompts")
GROUPS_A_PART = 10
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("search", "calculator")
)


def write(folder: Path, rollouts: int) -> None:
    """Write the run."""
    run = Run(id="exports", dir=str(folder), trainer="GRPOTrainer", model="synthetic", reward_names=NAMES, tools=TOOLS)
    writer = RunWriter(run)
    writer.write_run()
    words, rng = random.Random(0), np.random.default_rng(0)
    parts = folder / "data" / "train"
    parts.mkdir(parents=True)
    base = [template(words, number) for number in range(ROW_GROUP)]
    done = part = 0
    while done < rollouts:
        with part_writer(parts / f"001-00000-{part:06d}.parquet", to_batch(base[:1], []).schema) as add:
            for _ in range(GROUPS_A_PART):
                rows = [_numbered(base, place, rng) for place in range(done, min(done + ROW_GROUP, rollouts))]
                if rows:
                    add(pa.Table.from_batches([to_batch(rows, [])]))
                    done += len(rows)
        part += 1
    writer.write_run({"rollouts": done}, ended=True)


def _numbered(base: list[Rollout], place: int, rng: np.random.Generator) -> Rollout:
    """A rollout with numbers of its own, the prompt of its group, and an answer that no other has."""
    one, first = base[int(rng.integers(ROW_GROUP))], base[place // GROUP % ROW_GROUP]
    score = float(rng.integers(0, 5)) / 4
    *others, last = one.completion
    question = {**first.prompt[1], "content": f"{place // GROUP} {first.prompt[1]['content']}"}
    return replace(
        one, id=f"exports.1.t{place}", run_id="exports", step=place // 1024 + 1, generation=place // 1024,
        index=place % 1024, group=place % 1024 // GROUP, group_size=GROUP, prompt=(first.prompt[0], question),
        completion=(*others, {**last, "content": f"{last['content']} {place}"}), reward=score,
        rewards={NAMES[0]: score, NAMES[1]: 0.0}, completion_tokens=int(rng.integers(50, 1024)),
        columns={"answer": first.columns["answer"]},
    )  # fmt: skip


def measure(folder: Path, kind: str) -> None:
    """Export once and print what it took; in a process of its own."""
    started = time.perf_counter()
    exported = export_training_data(open_run(folder), kind, folder.parent / kind, force=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([time.perf_counter() - started, peak, exported.rows, exported.path.stat().st_size]))


def run(folder: Path, rollouts: int) -> None:
    if not (folder / "run").exists():
        write(folder / "run", rollouts)
    rows, goals = [], []
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.learn_exports", "--dir", str(folder), "--one", kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took, peak, written, bytes_ = json.loads(done.stdout.splitlines()[-1])
        rows.append([kind, f"{written:,}", seconds(took), size(peak), size(bytes_)])
        goals += [goal(f"{kind}: seconds", took, MOST_SECONDS), goal(f"{kind}: GB", peak / 1e9, MOST_MEMORY / 1e9)]
    show(table(f"Exports of {rollouts:,} rollouts", ["to", "rows", "time", "peak", "file"], rows))
    show(table("Goals", ["", "measured", "goal", ""], goals))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="where the run is, or is made; default: a temporary folder")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.dir / "run", options.one)
    elif options.dir:
        options.dir.mkdir(exist_ok=True)
        main(lambda: run(options.dir, options.rollouts))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(lambda: run(Path(made), options.rollouts))
