"""Ten million rollouts that many ranks wrote, in thousands of files: how long a person waits, and for how much memory.

    python -m benchmarks.scale [--rollouts 10000000] [--ranks 256] [--parts 16] [--dir DIR]

Each question is asked in a fresh process, three times, and the quickest counts, for other programs slow it down.
`first` is from opening the run to the answer, `CPU` what that took on all cores, `again` the same question put once
more, `peak` the largest resident size of the process. Whoever opens a run of many files first puts their sums together
and leaves them in its folder; the first two rows are without them. Then `rollouts compact` joins the files, and the
same is asked again. Files are in the page cache.

"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Rollout, Run

from benchmarks.measure import folder_bytes, goal, main, seconds, show, size, table
from benchmarks.million import NAMES, template
from benchmarks.read import OPEN, asked, first_screen, last_step, question
from rollout_plugins.cli.main import main as rollouts
from rollout_plugins.reading.sums_cache import FILE
from rollout_plugins.store.arrow_rollouts import to_batch
from rollout_plugins.store.schema import REWARD
from rollout_plugins.store.write import ROW_GROUP, RunWriter, part_writer

STEP = 32
"""Rollouts that a rank makes in a step."""
COUNTED = "number of rollouts"
SORTED = "filter and sort, first 10"
TIMES = 3
SCREEN = "viewer: rows on the screen"
FIRST_SCREEN, ANSWER, MEMORY = 1.5, 3.0, 500.0
QUESTIONS = {
    COUNTED: "assert len(run) == STEPS",
    "stats, step by step": "assert sum(r['rollouts'] for r in run.stats()) == STEPS",
    SORTED: """assert len(list(
        run.rollouts(where='reward < 0 and calls > 1', order='-completion_tokens', limit=10))) == 10""",
    "all by reward, the first page": """found = run.rollouts(order='-reward')
    assert len(found) == STEPS and len(list(found.page(0, 40))) == 40""",
    "best 3 of the last step": "assert len(list(run.rollouts(step='last', order='-reward', limit=3))) == 3",
    "one by id": "assert run.get(ID).id == ID",
    "SQL: mean reward by step": """assert run.sql(
        'select step, avg(reward) from rollouts group by step').num_rows""",
}


def write(folder: Path, rollouts: int, ranks: int, parts: int) -> int:
    """The run, as `RunWriter` of each rank leaves it behind; returns how many rollouts it has."""
    words = random.Random(0)
    base = to_batch([_short(template(words, number)) for number in range(ROW_GROUP)], [])
    (folder / "data" / "train").mkdir(parents=True)
    each = rollouts // ranks // parts
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(_rank, folder=folder, base=base, ranks=ranks, parts=parts, each=each), range(ranks)))
    return each * parts * ranks


def _short(rollout: Rollout) -> Rollout:
    """With a sentence to a message: what the questions are about is the numbers."""
    prompt, completion = (
        tuple({**message, "content": message["content"][:80]} for message in messages)
        for messages in (rollout.prompt, rollout.completion)
    )
    return replace(rollout, prompt=prompt, completion=completion)


def _rank(rank: int, *, folder: Path, base: pa.RecordBatch, ranks: int, parts: int, each: int) -> None:
    run = Run(
        id="scale", dir=str(folder), trainer="GRPOTrainer", model="synthetic", reward_names=NAMES, rank=rank,
        world_size=ranks,
    )  # fmt: skip
    writer = RunWriter(run)
    for part in range(parts):
        path = folder / "data" / "train" / f"001-{rank:05d}-{part:06d}.parquet"
        with part_writer(path, base.schema) as add:
            for batch in _batches(base, rank, part * each, each):
                add(pa.Table.from_batches([batch]))
    writer.write_run({"rollouts": each * parts}, ended=True)


def _batches(base: pa.RecordBatch, rank: int, start: int, count: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng((rank, start))
    for first in range(start, start + count, ROW_GROUP):
        rows = min(ROW_GROUP, start + count - first)
        yield _numbered(base.take(pa.array(rng.permutation(base.num_rows)[:rows])), rank, first, rng)


def _numbered(base: pa.RecordBatch, rank: int, first: int, rng: np.random.Generator) -> pa.RecordBatch:
    """The rows with numbers, names and ids of their own."""
    rows = base.num_rows
    number = np.arange(first, first + rows)
    generation, index = number // STEP, rank * STEP + number % STEP
    correct, shape = rng.normal(generation / 2000, 0.7, rows), rng.random(rows)
    values = pa.array(np.column_stack([correct, shape]).reshape(-1))
    pairs = pa.StructArray.from_arrays([pa.array(NAMES * rows, REWARD[0].type), values], fields=list(REWARD))
    steps, places = (pa.array(numbers).cast(pa.string()) for numbers in (generation, index))
    columns = {
        "id": pc.binary_join_element_wise("scale.1.t", steps, f".{rank}.", places, ""),
        "run_id": pa.array(["scale"] * rows),
        "step": pa.array(generation + 1),
        "policy_step": pa.array(generation),
        "generation": pa.array(generation),
        "rank": pa.array(np.full(rows, rank)),
        "index": pa.array(index),
        "group": pa.array(index // 8),
        "group_size": pa.array(np.full(rows, 8)),
        "time": pa.array(1.7e9 + generation * 60.0),
        "reward": pa.array(correct + shape),
        "rewards": pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * 2, pa.int32()), pairs),
        "advantage": pa.array(correct - shape),
        "completion_tokens": pa.array(rng.integers(50, 1024, rows)),
    }
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else base.column(place)
        for place, field in enumerate(base.schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=base.schema)


def answers(folder: Path, count: int, ident: str) -> tuple[list[list[str]], list[list[str]]]:
    """What each question takes, and the goals."""
    rows, took, peaks = [], {}, []
    last, new = last_step(folder), "when it was never opened"

    def times(title: str) -> Iterator[None]:
        for _ in range(TIMES):
            if title.endswith(new):
                (folder / FILE).unlink(missing_ok=True)
            yield

    def ask(label: str, title: str) -> None:
        code = OPEN + question(QUESTIONS, label)
        took[title], again, peak, cpu = min(asked(folder, ident, count, code)[label] for _ in times(title))
        rows.append([title, seconds(took[title]), seconds(cpu), seconds(again), size(peak)])
        peaks.append(peak)
        show(f"asked {title}")

    def look(title: str) -> None:
        took[title] = min(first_screen(folder, last) for _ in times(title))
        rows.append([title, seconds(took[title]), "-", "-", "-"])

    ask(COUNTED, f"{COUNTED}, {new}")
    look(f"{SCREEN}, {new}")
    for label in QUESTIONS:
        ask(label, label)
    look(SCREEN)
    return rows, [
        goal(f"first screen, {new}, seconds", took[f"{SCREEN}, {new}"], FIRST_SCREEN),
        goal("first screen, seconds", took[SCREEN], FIRST_SCREEN),
        goal(f"{SORTED}, seconds", took[SORTED], ANSWER),
        goal("most memory of a question, MB", max(peaks) / 1e6, MEMORY),
    ]


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--parts", type=int, default=16, help="files of each rank")
    parser.add_argument("--dir", type=Path, help="where the run is kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        folder = (options.dir or Path(temporary)) / "scale"
        count = options.rollouts // options.ranks // options.parts * options.parts * options.ranks
        if not folder.exists():
            write(folder, options.rollouts, options.ranks, options.parts)
        for then in ("as its ranks wrote them", "after `rollouts compact`"):
            parts = len(list(folder.glob("data/*/*.parquet")))
            rows, goals = answers(folder, count, "scale.1.t7.0.5")
            title = f"{count:,} rollouts in {parts:,} files, {size(folder_bytes(folder))}, {then}"
            show(table(title, ["", "first", "CPU", "again", "peak"], rows))
            show(table(f"Goals, {then}", ["goal", "measured", "wanted", ""], goals))
            if then.startswith("as"):
                started = time.perf_counter()
                rollouts(["compact", str(folder)])
                show(f"compacted in {seconds(time.perf_counter() - started)}")


if __name__ == "__main__":
    main(run)
