"""verl's `rollout_data_dir` and `validation_data_dir`: one `<step>.jsonl` for each step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout

from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import Skip, converted, find, given, messages, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "verl"
LACKS = (
    "turns and tool calls: prompt and completion are flat texts",
    "rewards per function beyond the score, and advantages",
    "finish reasons, token counts, log-probabilities and images",
    "train or eval: --split says which",
)
_OWN = ("input", "output", "gts", "score", "step")


def read(path: Path, skip: Skip) -> Iterator[Found]:
    """The rows of every file, in the order of the steps."""
    for file in find(path, "*.jsonl", "the rollout_data_dir, or one file in it"):
        step = int(file.stem) if file.stem.isdigit() else 0
        yield from converted(file, skip, partial(_row, step=step, skip=skip))


def _row(row: dict[str, Any], step: int, skip: Skip) -> list[Found]:
    if "input" not in row and "output" not in row:
        skip("row without input and output")
        return []
    return [found(row, step)]


def found(row: dict[str, Any], step: int) -> Found:
    """The rollout of one dumped row."""
    prompt, prompt_is_text = messages(row.get("input"), "user")
    completion, completion_is_text = messages(row.get("output"), "assistant")
    score = given(row.get("score"))
    rollout = Rollout(
        id="",
        step=whole(row.get("step"), step),
        prompt=prompt,
        completion=completion,
        prompt_is_text=prompt_is_text,
        completion_is_text=completion_is_text,
        rewards={"score": score},
        reward=score,
        columns={"gts": row["gts"]} if row.get("gts") is not None else {},
        extra={name: value for name, value in row.items() if name not in _OWN},
    )
    return Found(rollout, _group(row))


def _group(row: dict[str, Any]) -> Any:
    """Newer versions write `uid` as `<sample>_<rollout>_<output>`."""
    uid = row.get("uid")
    pieces = uid.rsplit("_", 2) if isinstance(uid, str) else []
    return pieces[0] if len(pieces) == 3 and pieces[1].isdigit() and pieces[2].isdigit() else row.get("input")
