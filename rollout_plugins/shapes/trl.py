"""Read TRL's `completions/completions_<step>.parquet`, which it writes with `log_completions=True`."""

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
from rollout_plugins.shapes._fields import as_whole, message_fields
from rollout_plugins.shapes._files import BROKEN, find_files

NAME = "TRL"
LACKS = (
    "reward weights: reward is the plain sum",
    "which columns are rewards: numeric columns count as rewards, the others as extra columns",
    "train or eval: both are in one file; choose with --split",
    "groups: equal prompts of a file count as one group",
    "finish reasons, token counts and images",
    "the difference between an argument that is None and a missing one",
)
_OWN = ("step", "prompt", "completion", "advantage")


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Yield the rows of every file, in the order of the steps."""
    folder = path / "completions" if (path / "completions").is_dir() else path
    for file in find_files(folder, "*.parquet", "the completions folder, or the output_dir it is in"):
        try:
            table = pq.read_table(file, partitioning=None)  # otherwise a `key=value` in the path would become a column
        except (pa.ArrowException, OSError):
            yield Lost("Parquet file that cannot be read")
            continue
        rewards = [field.name for field in table.schema if field.name not in _OWN and _is_number(field.type)]
        others = [name for name in table.column_names if name not in {*_OWN, *rewards} and not name.startswith("__")]
        convert = partial(_rollout, reward_names=rewards, extra_names=others)
        yield from convert_each(convert, table.to_pylist(), BROKEN)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _rollout(row: Mapping[str, Any], reward_names: list[str], extra_names: list[str]) -> Unplaced:
    rewards = {name: _reward(row[name]) for name in reward_names}
    values = [value for value in rewards.values() if value is not None]
    rollout = Rollout(
        id="",
        step=as_whole(row.get("step")),
        **message_fields(_without_none(row.get("prompt")), _without_none(row.get("completion"))),
        rewards=rewards,
        reward=sum(values) if values else None,
        advantage=_reward(row.get("advantage")),
        extra={name: row[name] for name in extra_names},
    )
    return Unplaced(rollout)


def _reward(value: Any) -> Any:
    """Return the value, or None for the NaN that TRL writes if a function returned none."""
    real = to_float(value)
    return None if type(real) is float and math.isnan(real) else real


def _without_none(value: Any) -> Any:
    """Remove the fields that Parquet added to each message, and to each call's arguments, because others have them."""
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None or key == "content"}
    return value
