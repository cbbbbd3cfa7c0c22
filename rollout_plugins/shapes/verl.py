"""Read verl's rollouts: the arguments of its `_dump_generations`, and the `<step>.jsonl` files that it writes.

The files are in `rollout_data_dir` and `validation_data_dir`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.foreign_values import (
    CopiedBatch,
    CopyOptions,
    ForeignRollouts,
    Lost,
    Unplaced,
    copied_batch,
)
from rollout_plugins.content.rewards import to_float
from rollout_plugins.content.snapshot import Snapshot
from rollout_plugins.errors import SetupError
from rollout_plugins.shapes._fields import as_whole, message_fields
from rollout_plugins.shapes._files import each_row, find_files

NAME = "verl"
LACKS = (
    "turns and tool calls: prompt and completion are flat texts",
    "rewards per function beyond the score, and advantages",
    "finish reasons, token counts, log-probabilities and images",
    "train or eval: choose with --split",
)
_OWN = ("input", "output", "gts", "score", "step")


def rollouts(
    inputs: Any,
    outputs: Any,
    gts: Any = None,
    scores: Any = None,
    reward_extra_infos_dict: Mapping[str, Any] | None = None,
    *,
    uids: Any = None,
) -> ForeignRollouts:
    """Return one rollout for each input and output; each argument is a list, an array or a tensor.

    Args:
        inputs: the prompts, as text or messages.
        outputs: the answers, as text or messages.
        gts: the ground truths.
        scores: the values of the reward function.
        reward_extra_infos_dict: further values of the reward function, by name.
        uids: `batch.non_tensor_batch["uid"]`, equal for answers to one prompt; without it, equal inputs form a group.
    """
    arguments = {"input": inputs, "output": outputs, "gts": gts, "score": scores, "uid": uids}
    return ForeignRollouts(lambda options: _take(arguments, reward_extra_infos_dict or {}, options))


def _take(arguments: Mapping[str, Any], infos: Mapping[str, Any], options: CopyOptions) -> CopiedBatch:
    copier = Snapshot()
    columns = {n: copier.copy(_list(values)) for n, values in {**infos, **arguments}.items() if values is not None}
    count = len(columns["output"])
    other_lengths = {name: values for name, values in columns.items() if len(values) != count}
    faults = [f"{len(other_lengths[name])} of {name}" for name in arguments if name in other_lengths]
    if faults and options.checked:
        raise SetupError(f"there are {count} outputs, but {', '.join(faults)}; give one for each")
    names = [name for name in columns if name not in other_lengths]
    items = [({name: columns[name][i] for name in names}, {} if i else other_lengths) for i in range(count)]
    return copied_batch(_item_rollout, items, copier.bytes, ("score",))


def _list(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _item_rollout(item: tuple[dict[str, Any], dict[str, list[Any]]]) -> Unplaced:
    """Return the rollout of a row. The first one stores the lists that do not have one value per rollout."""
    row, other_lists = item
    rollout = _rollout(row, 0)
    notes = {f"extra:{name}": f"all {len(values)} values; stored here in full" for name, values in other_lists.items()}
    return Unplaced(replace(rollout, extra={**rollout.extra, **other_lists}, marks=notes), row.get("uid"))


def _rollout(row: dict[str, Any], step: int) -> Rollout:
    score = to_float(row.get("score"))
    return Rollout(
        id="",
        step=as_whole(row.get("step"), step),
        **message_fields(row.get("input"), row.get("output")),
        rewards={"score": score},
        reward=score,
        columns={"gts": row["gts"]} if row.get("gts") is not None else {},
        extra={name: value for name, value in row.items() if name not in _OWN},
    )


# --- files ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Yield the rows of every file, in the order of the steps."""
    for file in find_files(path, "*.jsonl", "the rollout_data_dir, or one file in it"):
        step = int(file.stem) if file.stem.isdigit() else 0
        yield from each_row(file, partial(_row_rollout, step=step))


def _row_rollout(row: dict[str, Any], step: int) -> Unplaced | Lost:
    if "input" not in row and "output" not in row:
        return Lost("row without input and output")
    return Unplaced(_rollout(row, step), _group(row.get("uid")))


def _group(uid: Any) -> str | None:
    """Return the sample of a `uid`, which newer versions write as `<sample>_<rollout>_<output>`."""
    pieces = uid.rsplit("_", 2) if isinstance(uid, str) else []
    return pieces[0] if len(pieces) == 3 and pieces[1].isdigit() and pieces[2].isdigit() else None
