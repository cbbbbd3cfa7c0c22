"""Store what the trainer logs by step, such as loss and grad_norm, with a row for each value.

The files `steps/trainer/<attempt>-<rank>-<number>` work like those of rollouts: a journal becomes Parquet at the end
of a run. All have the same columns, whatever a trainer logs, so that any reader takes them as one table.
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
    """Return the rows of one log entry.

    For a value that is not a number, the row has a text that describes its type.
    """
    numbers = [value if isinstance(value, float) else None for value in values.values()]
    notes = [replace_surrogates(value) if isinstance(value, str) else None for value in values.values()]
    same = [[value] * len(values) for value in (run.id, run.attempt, run.rank, step, time)]
    columns = [*same, list(map(replace_surrogates, values)), numbers, notes]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def find_logs(folder: Path) -> list[Path]:
    """Return the log files of a run in writing order. A sealed journal that still exists does not count."""
    paths: list[Path] = []
    for node in nodes_of(folder):
        entries = sorted((node / FOLDER).glob("*"))  # .parquet sorts after .arrows and replaces it
        paths += {match[1]: path for path in entries if (match := _NAME.fullmatch(path.name))}.values()
    return paths
