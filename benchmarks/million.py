"""A run of a million rollouts, and how long it takes to ask it things.

    python benchmarks/million.py [--rollouts 1000000] [--dir DIR] [--keep]

The files are what `RunWriter` leaves behind (same schema, row groups, compression and sizes); texts, tools, rewards
and lengths vary from rollout to rollout. Each question runs in a fresh process: `first` reads from a cold process,
`again` asks the same open run once more, `peak` is the process's largest resident size. Where Ray is installed, its
example reads the run too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rollout_hookspecs import Rollout, Run, ToolCall

from rollout_plugins.store.schema import schema, to_batch
from rollout_plugins.store.write import ROW_GROUP, RunWriter

BATCH, GROUP = 1024, 8
GROUPS_A_PART = 10
WORDS = (Path(__file__).read_text(encoding="utf-8") * 2).split()
NAMES = ("correct", "format")

QUESTIONS = {
    "stats": "rows = run.stats(); assert sum(r['rollouts'] for r in rows) == len(run)",
    "filtered, sorted": """
    found = list(run.rollouts(where='reward < 0 and calls > 1', order='-completion_tokens', limit=10))
    assert len(found) == 10""",
    "best of last step": "assert len(list(run.rollouts(step='last', order='-reward', limit=3))) == 3",
    "get": "assert run.get(ID).id == ID",
    "group": "assert len(run.group(ID)) == 8",
    "sql": "assert run.sql('select step, avg(reward) from rollouts group by step').num_rows > 1",
    "text search": "assert len(list(run.rollouts(search='zyzzyva 77', limit=5))) == 5",
}


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def template(rng: random.Random, number: int) -> Rollout:
    calls = tuple(
        ToolCall(
            name=rng.choice(("search", "calculator")),
            arguments={"q": text(rng, 4), "n": i},
            turn=0,
            position=i,
            reply=1 + i,
            result=text(rng, 25),
            error=None if (ok := rng.random() < 0.9) else "ValueError: no",
            status="ok" if ok else "error",
            seconds=rng.random(),
        )
        for i in range(rng.randrange(4))
    )
    asked = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    answers = [{"role": "tool", "name": c.name, "content": c.result} for c in calls]
    rare = " zyzzyva 77" if number % 997 == 0 else ""
    return Rollout(
        id="",
        prompt=({"role": "system", "content": "You are helpful."}, {"role": "user", "content": text(rng, 60)}),
        completion=(
            {"role": "assistant", "content": text(rng, 30), **({"tool_calls": asked} if asked else {})},
            *answers,
            {"role": "assistant", "content": text(rng, 90) + rare},
        ),
        tool_calls=calls,
        rewards=dict.fromkeys(NAMES, 0.0),
        prompt_tokens=70,
        finish="length" if number % 11 == 0 else "stop",
        columns={"answer": text(rng, 5)},
    )


def batch_of(base: pa.RecordBatch, start: int, rng: np.random.Generator, run: Run) -> pa.RecordBatch:
    """The base rows in another order, with numbers, names and ids of their own."""
    rows = base.num_rows
    number = np.arange(start, start + rows)
    generation, index = number // BATCH, number % BATCH
    correct = rng.normal(generation / 2000, 0.7, rows)
    shape = rng.random(rows)
    columns = {
        "id": [f"{run.id}.1.t{g}.0.{i}" for g, i in zip(generation, index, strict=True)],
        "run_id": [run.id] * rows,
        "step": generation + 1,
        "policy_step": generation,
        "generation": generation,
        "index": index,
        "group": index // GROUP,
        "group_size": np.full(rows, GROUP),
        "time": 1.7e9 + generation * 60.0,
        "reward": correct + shape,
        "reward/correct": correct,
        "reward/format": shape,
        "advantage": correct - shape,
        "completion_tokens": rng.integers(50, 1024, rows),
    }
    shuffled = base.take(pa.array(rng.permutation(rows)))
    arrays = [
        pa.array(columns[f.name], f.type) if f.name in columns else shuffled.column(i)
        for i, f in enumerate(base.schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=base.schema)


def write(folder: Path, rollouts: int) -> Run:
    run = Run(id="million", dir=str(folder), trainer="GRPOTrainer", model="synthetic", reward_names=NAMES)
    writer = RunWriter(run)
    writer.write_run()
    words, rng = random.Random(0), np.random.default_rng(0)
    base = to_batch([replace(template(words, n), run_id=run.id) for n in range(ROW_GROUP)], schema(NAMES), [])
    parts = folder / "data" / "train"
    parts.mkdir(parents=True)
    done = 0
    for part in range(-(-rollouts // (ROW_GROUP * GROUPS_A_PART))):
        with pq.ParquetWriter(
            parts / f"001-00000-{part:06d}.parquet", base.schema, compression="zstd", compression_level=1
        ) as file:
            for _ in range(GROUPS_A_PART):
                batch = batch_of(base, done, rng, run).slice(0, rollouts - done)
                if batch.num_rows:
                    file.write_batch(batch, row_group_size=ROW_GROUP)
                    done += batch.num_rows
    writer.write_run({"rollouts": done}, ended=True)
    return run


ASK = """
import json, resource, sys, time
from rollout_plugins import open_run
started = time.perf_counter()
run, ID = open_run(sys.argv[1]), sys.argv[2]
def ask():
    {question}
ask()
first = time.perf_counter() - started
started = time.perf_counter()
ask()
print(json.dumps([first, time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def measure(folder: Path, rollouts: int) -> list[tuple[str, float, float, float]]:
    name = f"million.1.t{rollouts // BATCH // 2}.0.77"
    out = []
    for label, question in QUESTIONS.items():
        code = ASK.format(question=question)
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{label}: {done.stderr}")
        out.append((label, *json.loads(done.stdout)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, help="where to write the run (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the run there; use it again if it is there already")
    options = parser.parse_args()
    folder = (options.dir or Path(tempfile.mkdtemp(prefix="million-"))) / "million"
    if not folder.exists():
        started = time.perf_counter()
        write(folder, options.rollouts)
        size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        print(f"wrote {options.rollouts:,} rollouts, {size / 2**20:,.0f} MB, in {time.perf_counter() - started:.1f} s")
    print(f"{'question':<20} {'first':>8} {'again':>8} {'peak':>8}")
    for label, first, again, peak in measure(folder, options.rollouts):
        print(f"{label:<20} {first:>6.2f} s {again:>6.2f} s {peak:>5.0f} MB")
    if importlib.util.find_spec("ray") is not None:
        example = Path(__file__).parents[1] / "examples" / "read_with_ray.py"
        subprocess.run([sys.executable, str(example), str(folder)], check=True)
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
