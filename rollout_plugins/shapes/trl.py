"""TRL's `completions/completions_<step>.parquet`, written with `log_completions=True`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rollout_hookspecs import Rollout

from rollout_plugins.content.foreign_values import Lost, Unplaced, convert_each
from rollout_plugins.content.rewards import to_float
from rollout_plugins.shapes._fields import spoken, whole
from rollout_plugins.shapes._files import BROKEN, find

NAME = "TRL"
LACKS = (
    "reward weights: reward is the plain sum",
    "which columns are rewards: numbers are taken for rewards, the rest for extra columns",
    "train or eval: both share a file; --split says which",
    "groups: equal prompts of a file are taken for one",
    "finish reasons, token counts and images",
    "the difference between an argument that is None and one that is not there",
)
_OWN = ("step", "prompt", "completion", "advantage")


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """The rows of every file, in the order of the steps."""
    folder = path / "completions" if (path / "completions").is_dir() else path
    for file in find(folder, "*.parquet", "the completions folder, or the output_dir it is in"):
        try:
            table = pq.read_table(file, partitioning=None)  # else `key=value` in its path would be a column
        except (pa.ArrowException, OSError):
            yield Lost("Parquet file that cannot be read")
            continue
        rewards = [field.name for field in table.schema if field.name not in _OWN and _is_number(field.type)]
        extra = [name for name in table.column_names if name not in {*_OWN, *rewards} and not name.startswith("__")]
        yield from convert_each(partial(_found, rewards=rewards, extra=extra), table.to_pylist(), BROKEN)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _found(row: Mapping[str, Any], rewards: list[str], extra: list[str]) -> Unplaced:
    scored = {name: _given(row[name]) for name in rewards}
    known = [value for value in scored.values() if value is not None]
    rollout = Rollout(
        id="",
        step=whole(row.get("step")),
        **spoken(_without_none(row.get("prompt")), _without_none(row.get("completion"))),
        rewards=scored,
        reward=sum(known) if known else None,
        advantage=_given(row.get("advantage")),
        extra={name: row[name] for name in extra},
    )
    return Unplaced(rollout)


def _given(value: Any) -> Any:
    """TRL writes NaN where a function gave none."""
    real = to_float(value)
    return None if type(real) is float and math.isnan(real) else real


def _without_none(value: Any) -> Any:
    """Parquet gave every message, and every call's arguments, the fields of all others."""
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None or key == "content"}
    return value
