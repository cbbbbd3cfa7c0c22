"""Read JSON lines of OpenAI messages: `{"messages": […]}` or `{"prompt": …, "completion": …}`, with further keys."""

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
from rollout_plugins.shapes._fields import (
    FINISHES,
    as_whole,
    as_whole_or_none,
    dict_in,
    finish_of,
    message_fields,
    scores,
)
from rollout_plugins.shapes._files import each_row, find_files

NAME = "OpenAI messages"
LACKS = (
    "rewards and other facts, unless the lines have reward, rewards, advantage, step, split, group, finish_reason",
    "token ids, rendered prompts and the pixels of images; lines of our own sink lack nothing else",
)
_MESSAGE_KEYS = {"messages", "prompt", "completion"}
_FACT_KEYS = {"reward", "advantage", "group"}
_FIELDS = " fields"
_SINK_KEYS = {"request_id", "stop_condition", "info", "marks", "spans"}


def read(path: Path) -> Iterator[Unplaced | Lost]:
    """Yield one rollout per line."""
    for file in find_files(path, "**/*.jsonl", "a .jsonl file, or a folder of them"):
        yield from each_row(file, _row)


def _row(row: dict[str, Any]) -> Unplaced | Lost:
    if row.keys() >= _SINK_KEYS and "exact" in row:
        with suppress(Exception):  # an edited line is read like any other line
            rollout = restore_rollout(row)
            return Unplaced(rollout, generation=(rollout.attempt, rollout.generation), has_place=True)
    messages = row.get("messages")
    if isinstance(messages, list):  # the prompt is everything before the first answer
        first = next((i for i, message in enumerate(messages) if role_of(message) == "assistant"), len(messages))
        return _rollout(row, message_fields(messages[:first], messages[first:]))
    if "completion" in row:
        return _rollout(row, message_fields(row.get("prompt"), row["completion"]))
    return Lost("row without messages")


def _rollout(row: dict[str, Any], conversation: dict[str, Any]) -> Unplaced:
    is_from_sink = row.keys() >= _SINK_KEYS
    row = _read_sink_line(row) if is_from_sink else row
    rewards, other_rewards = scores(row.get("rewards"))
    columns = {name: value for name, value in row.items() if name not in _keys_with_fields(row)}
    fields = {
        "finish": finish_of(row.get("finish_reason")),
        "columns": columns if other_rewards is None else {**columns, "rewards": other_rewards},
        **row.get(_FIELDS, {}),
    }
    rollout = Rollout(
        id="",
        split="eval" if str(row.get("split", "train")).startswith(("eval", "val", "test")) else "train",
        step=as_whole(row.get("step")),
        **conversation,
        rewards=rewards,
        reward=to_float(row.get("reward", row.get("score"))),
        advantage=to_float(row.get("advantage")),
        **fields,
    )
    generation = [row.get(name) for name in ("run", "attempt", "generation")] if is_from_sink else None
    return Unplaced(rollout, row.get("group"), None if generation is None else content_hash(generation))


def _keys_with_fields(row: dict[str, Any]) -> set[str]:
    """Return the keys of a line that become fields of the rollout; the others become columns."""
    message_keys = {"messages"} if isinstance(row.get("messages"), list) else _MESSAGE_KEYS - {"messages"}
    keys = {*_FACT_KEYS, *message_keys, "rewards"} | ({"score"} if "reward" not in row else set())
    step = real(row.get("step"))
    if row.get("step") is None or (step is not None and step == as_whole(step)):
        keys.add("step")
    if row.get("split") in (None, "train", "eval"):
        keys.add("split")
    if row.get("finish_reason") is None or str(row["finish_reason"]) in FINISHES:
        keys.add("finish_reason")
    return keys


def _read_sink_line(row: dict[str, Any]) -> dict[str, Any]:
    """Read a line of our own `jsonl` sink that a plugin formatted or somebody edited.

    Its facts become fields, and the texts that plain JSON has for NaN and infinities become numbers.
    """
    counts = ("prompt_tokens", "completion_tokens", "policy_step")
    fields = {
        "finish": finish_of(row.get("finish")),
        "error": row["error"] if isinstance(row.get("error"), str) else None,
        "time": _time(row.get("time")),
        **{name: as_whole_or_none(row.get(name)) for name in counts},
        "columns": dict_in(row, "info"),
        "extra": dict_in(row, "extra"),
        "marks": {name: str(value) for name, value in dict_in(row, "marks").items()},
    }
    numbers = {name: _parse_non_finite(row.get(name)) for name in ("reward", "advantage")}
    rewards = {name: _parse_non_finite(value) for name, value in dict_in(row, "rewards").items()}
    return {**row, **numbers, "rewards": rewards, _FIELDS: fields}


def _parse_non_finite(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _time(value: Any) -> float:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
