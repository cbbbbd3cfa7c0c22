"""What the trainer logs by step, such as loss and grad_norm: one row for each value.

`steps/trainer/<attempt>-<rank>-<number>` are files as those of rollouts are: a journal that becomes Parquet at the end
of a run. Every file has the same columns, whatever a trainer logs, so that any reader takes them as one table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from rollout_hookspecs import Run

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.store.schema import TEXT
from rollout_plugins.system.node_folders import nodes_of

FOLDER = Path("steps", "trainer")
SCHEMA = pa.schema(
    [
        ("run_id", TEXT),
        ("attempt", pa.int64()),
        ("rank", pa.int64()),
        ("step", pa.int64()),
        ("time", pa.float64()),
        ("name", TEXT),
        ("value", pa.float64()),
        ("note", TEXT),
    ],
    metadata={"rollout_plugins.steps": "1"},
)
_NAME = re.compile(r"([0-9]+-[0-9]+-[0-9]+)\.(?:arrows|parquet)")


def to_rows(run: Run, step: int, time: float, values: Mapping[str, float | str]) -> pa.RecordBatch:
    """Return the rows of what was logged once. A text says of which type a value was that is not a number."""
    numbers = [value if isinstance(value, float) else None for value in values.values()]
    notes = [replace_surrogates(value) if isinstance(value, str) else None for value in values.values()]
    same = [[value] * len(values) for value in (run.id, run.attempt, run.rank, step, time)]
    columns = [*same, list(map(replace_surrogates, values)), numbers, notes]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def find_logs(folder: Path) -> list[Path]:
    """Return the files of a run, in writing order; of a journal and the Parquet file made of it, the Parquet file."""
    found: list[Path] = []
    for node in nodes_of(folder):
        there = sorted((node / FOLDER).glob("*"))  # .parquet comes after .arrows and wins
        found += {match[1]: path for path in there if (match := _NAME.fullmatch(path.name))}.values()
    return found
