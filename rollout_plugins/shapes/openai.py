"""JSON lines of OpenAI messages: `{"messages": […]}` or `{"prompt": …, "completion": …}`, and what stands beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout

from rollout_plugins.content.exact_jsonl import restore_rollout
from rollout_plugins.content.foreign_values import Lost, Unplaced
from rollout_plugins.content.hashing import content_hash
from rollout_plugins.content.messages import role_of
from rollout_plugins.content.numbers import real
from rollout_plugins.content.rewards import to_float
from rollout_plugins.shapes._fields import FINISHES, dict_in, finish_of, scores, spoken, whole, whole_or_none
from rollout_plugins.shapes._files import each_row, find

NAME = "OpenAI messages"
LACKS = (
    "rewards and the like, unless the lines have reward, rewards, advantage, step, split, group, finish_reason",
    "token ids, rendered prompts and the pixels of images; in lines of our own, nothing else",
)
_TALK = {"messages", "prompt", "completion"}
_OWN = {"reward", "advantage", "group"}
_FIELDS = " fields"
_OURS = {"request_id", "stop_condition", "info", "marks", "spans"}


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """One rollout for each line."""
    for file in find(path, "**/*.jsonl", "a .jsonl file, or a folder of them"):
        yield from each_row(file, _row)


def _row(row: dict[str, Any]) -> Unplaced | Lost:
    if row.keys() >= _OURS and "exact" in row:
        with suppress(Exception):  # somebody edited it: it is read as any other line
            rollout = restore_rollout(row)
            return Unplaced(rollout, generation=(rollout.attempt, rollout.generation), has_place=True)
    said = row.get("messages")
    if isinstance(said, list):  # what came before the first answer is the prompt
        first = next((at for at, message in enumerate(said) if role_of(message) == "assistant"), len(said))
        return _found(row, spoken(said[:first], said[first:]))
    if "completion" in row:
        return _found(row, spoken(row.get("prompt"), row["completion"]))
    return Lost("row without messages")


def _found(row: dict[str, Any], talk: dict[str, Any]) -> Unplaced:
    is_ours = row.keys() >= _OURS
    row = _ours(row) if is_ours else row
    scored, other_rewards = scores(row.get("rewards"))
    columns = {name: value for name, value in row.items() if name not in _said(row)}
    fields = {
        "finish": finish_of(row.get("finish_reason")),
        "columns": columns if other_rewards is None else {**columns, "rewards": other_rewards},
        **row.get(_FIELDS, {}),
    }
    rollout = Rollout(
        id="",
        split="eval" if str(row.get("split", "train")).startswith(("eval", "val", "test")) else "train",
        step=whole(row.get("step")),
        **talk,
        rewards=scored,
        reward=to_float(row.get("reward", row.get("score"))),
        advantage=to_float(row.get("advantage")),
        **fields,
    )
    generation = [row.get(name) for name in ("run", "attempt", "generation")] if is_ours else None
    return Unplaced(rollout, row.get("group"), None if generation is None else content_hash(generation))


def _said(row: dict[str, Any]) -> set[str]:
    """What the rollout's own fields say of a line; the rest becomes columns."""
    talk = {"messages"} if isinstance(row.get("messages"), list) else _TALK - {"messages"}
    said = {*_OWN, *talk, "rewards"} | ({"score"} if "reward" not in row else set())
    step = real(row.get("step"))
    if row.get("step") is None or (step is not None and step == whole(step)):
        said.add("step")
    if row.get("split") in (None, "train", "eval"):
        said.add("split")
    if row.get("finish_reason") is None or str(row["finish_reason"]) in FINISHES:
        said.add("finish_reason")
    return said


def _ours(row: dict[str, Any]) -> dict[str, Any]:
    """A line of our own `jsonl` sink that a plugin formatted or somebody edited.

    Its facts become fields, and the words that plain JSON has for NaN become numbers.
    """
    counts = ("prompt_tokens", "completion_tokens", "policy_step")
    fields = {
        "finish": finish_of(row.get("finish")),
        "error": row["error"] if isinstance(row.get("error"), str) else None,
        "time": _time(row.get("time")),
        **{name: whole_or_none(row.get(name)) for name in counts},
        "columns": dict_in(row, "info"),
        "extra": dict_in(row, "extra"),
        "marks": {name: str(value) for name, value in dict_in(row, "marks").items()},
    }
    numbers = {name: _spelled(row.get(name)) for name in ("reward", "advantage")}
    rewards = {name: _spelled(value) for name, value in dict_in(row, "rewards").items()}
    return {**row, **numbers, "rewards": rewards, _FIELDS: fields}


def _spelled(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _time(value: Any) -> float:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
