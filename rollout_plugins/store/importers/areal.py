"""AReaL's rollout dumps: `rollout/<version>/<task_id>.jsonl`, and `eval-rollout/…` for evaluation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout

from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import Skip, converted, find, given, list_in, messages, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "AReaL"
LACKS = (
    "messages and tool calls: texts carry the chat template's own tokens",
    "whose words stand between the model's turns: they get the role 'context'",
    "rewards per function, advantages and log-probabilities",
    "finish reasons and images",
    "rejected trajectories, which are not dumped",
)
_ROLES = {"prompt": "user", "gen": "assistant", "context": "context"}


def read(path: Path, skip: Skip) -> Iterator[Found]:
    """The samples of every task, in the order of the versions."""
    for file in find(path, "**/*.jsonl", "the rollout folder of the trial's logs, or one file in it"):
        yield from converted(file, skip, partial(_row, file=file, skip=skip))


def _row(row: dict[str, Any], file: Path, skip: Skip) -> list[Found]:
    if "completion" not in row or "prompt" not in row:
        skip("row without prompt and completion")
        return []
    return [_found(row, file)]


def _found(row: dict[str, Any], file: Path) -> Found:
    prompt, prompt_is_text = messages(row["prompt"], "user")
    segments = [part for part in list_in(row, "segments") if isinstance(part, dict)]
    if segments:
        turns = [
            {"role": _ROLES.get(str(part.get("role")), "context"), "content": part.get("text")}
            for part in segments
            if part.get("role") != "prompt"
        ]
        completion, completion_is_text = tuple(turns), False
    else:
        completion, completion_is_text = messages(row["completion"], "assistant")
    reward = given(row.get("reward"))
    versions = [pair for pair in list_in(row, "version_rle") if isinstance(pair, list) and len(pair) == 2]
    rollout = Rollout(
        id="",
        split="eval" if "eval-rollout" in file.parts else "train",
        step=int(file.parent.name) if file.parent.name.isdigit() else whole(row.get("tail_version")),
        policy_step=whole(row["tail_version"]) if number(row.get("tail_version")) is not None else None,
        prompt=prompt,
        completion=completion,
        prompt_is_text=prompt_is_text,
        completion_is_text=completion_is_text,
        rewards={"reward": reward} | ({"original": given(row["original_reward"])} if "original_reward" in row else {}),
        reward=reward,
        prompt_tokens=whole(row["prompt_len"]) if "prompt_len" in row else None,
        completion_tokens=sum(whole(count) for _, count in versions) if versions else None,
        columns={"task_id": row.get("task_id")},
        extra={name: row[name] for name in ("head_version", "tail_version", "version_rle", "seqlen") if name in row},
    )
    return Found(rollout, row.get("task_id"))
