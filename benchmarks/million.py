"""A run of a million rollouts, as `RunWriter` leaves it behind: same schema, row groups, compression and sizes.

    python -m benchmarks.million DIR [--rollouts 1000000]

Texts, tools, rewards and lengths vary from rollout to rollout. `benchmarks.read` asks it things.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Rollout, Run, ToolCall

from rollout_plugins.store.arrow_rollouts import to_batch
from rollout_plugins.store.write import ROW_GROUP, RunWriter, part_writer

BATCH, GROUP = 1024, 8
GROUPS_A_PART = 10
WORDS = (Path(__file__).read_text(encoding="utf-8") * 2).split()
NAMES = ("correct", "format")


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


def _named(*values: float) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in zip(NAMES, values, strict=True)]


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
        "rewards": [_named(*values) for values in zip(correct, shape, strict=True)],
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
    base = to_batch([replace(template(words, n), run_id=run.id) for n in range(ROW_GROUP)], [])
    parts = folder / "data" / "train"
    parts.mkdir(parents=True)
    done = 0
    for part in range(-(-rollouts // (ROW_GROUP * GROUPS_A_PART))):
        with part_writer(parts / f"001-00000-{part:06d}.parquet", base.schema) as add:
            for _ in range(GROUPS_A_PART):
                batch = batch_of(base, done, rng, run).slice(0, rollouts - done)
                if batch.num_rows:
                    add(pa.Table.from_batches([batch]))
                    done += batch.num_rows
    writer.write_run({"rollouts": done}, ended=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, help="the run's folder")
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    options = parser.parse_args()
    write(options.dir, options.rollouts)


if __name__ == "__main__":
    main()
