"""How long a person waits for answers from a run of thousands of small files, as many ranks or restarts leave it.

    python -m benchmarks.small [--files 3000] [--dir DIR]

Eight rollouts in each file. Each question is asked in a fresh process: `first` from opening the run to the answer,
`CPU` what that took on all cores, `again` the same question put to the same open run once more, `peak` the largest
resident size of the process.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Run

from benchmarks import million
from benchmarks.measure import folder_bytes, main, seconds, show, size, table
from benchmarks.read import OPEN, asked, question
from rollout_plugins.store.arrow_rollouts import to_batch
from rollout_plugins.store.write import RunWriter, part_writer

ROWS = 8
QUESTIONS = {
    "count": "assert len(run) == 8 * STEPS",
    "stats, step by step": "assert len(run.stats()) == STEPS",
    "rollouts of one step": "assert len(list(run.rollouts(step=7))) == 8",
    "first 100, ordered by step": "assert len(list(run.rollouts(order='-step', limit=100))) == 100",
    "one by id": "assert run.get(ID).id == ID",
    "SQL: mean reward by step": """assert run.sql(
        'select step, avg(reward) from rollouts group by step').num_rows == STEPS""",
    "text search, first 5": f"assert len(list(run.rollouts(search={'zyzzyva 77'!r}, limit=5))) == 5",
    "all rollouts": "assert sum(1 for _ in run.rollouts()) == 8 * STEPS",
    "refresh, and count": "run.refresh(); assert len(run) == 8 * STEPS",
}


def write(folder: Path, files: int) -> None:
    run = Run(id="small", dir=str(folder), trainer="GRPOTrainer", model="synthetic", reward_names=million.NAMES)
    parts = folder / "data" / "train"
    parts.mkdir(parents=True)
    words, rng = random.Random(0), np.random.default_rng(0)
    base = to_batch([million.template(words, n) for n in range(997 * ROWS)], [])
    for number in range(files):
        batch = million.batch_of(base.slice(number % 997 * ROWS, ROWS), number * million.BATCH, rng, run)
        with part_writer(parts / f"001-00000-{number:06d}.parquet", batch.schema) as add:
            add(pa.Table.from_batches([batch]))
    RunWriter(run).write_run({"rollouts": files * ROWS}, ended=True)


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--dir", type=Path, help="where the run is kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="small-") as temporary:
        stored = (options.dir or Path(temporary)) / "small"
        if not stored.exists():
            write(stored, options.files)
        rows: list[list[Any]] = []
        for label in QUESTIONS:
            first, again, peak, cpu = asked(
                stored, "small.1.t7.0.3", options.files, OPEN + question(QUESTIONS, label)
            )[label]
            show(f"asked {label}")
            rows.append([label, seconds(first), seconds(cpu), seconds(again), size(peak)])
        head = ["", "first", "CPU", "again", "peak"]
        show(table(f"{options.files:,} files of {ROWS} rollouts, {size(folder_bytes(stored))}", head, rows))


if __name__ == "__main__":
    main(run)
