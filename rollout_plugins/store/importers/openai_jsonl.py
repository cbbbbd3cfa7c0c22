"""JSON lines of OpenAI messages: `{"messages": […]}` or `{"prompt": …, "completion": …}`, and what stands beside."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from rollout_hookspecs import Rollout
from rollout_hookspecs._records import Finish

from rollout_plugins.messages import role_of
from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.files import (
    Skip,
    converted,
    dict_in,
    find,
    given,
    messages,
    number,
    scores,
    tool_calls,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "OpenAI messages"
LACKS = ("whatever the lines do not say: reward, rewards, advantage, step, split, group and finish_reason are read",)
_TALK = {"messages", "prompt", "completion"}
_OWN = {"reward", "advantage", "group"}
_FINISH: dict[Any, Finish] = {name: name for name in get_args(Finish)} | {"tool_calls": "stop"}
_FIELDS = " fields"
_OURS = {"request_id", "stop_condition", "info", "marks", "spans"}


def read(path: Path, skip: Skip) -> Iterator[Found]:
    """One rollout for each line."""
    for file in find(path, "**/*.jsonl", "a .jsonl file, or a folder of them"):
        yield from converted(file, skip, partial(_row, skip=skip))


def _row(row: dict[str, Any], skip: Skip) -> list[Found]:
    if isinstance(row.get("messages"), list):
        prompt, completion = _split(row["messages"])
        return [_found(row, prompt, completion, (False, False))]
    if "completion" in row:
        prompt, prompt_is_text = messages(row.get("prompt"), "user")
        completion, completion_is_text = messages(row["completion"], "assistant")
        return [_found(row, prompt, completion, (prompt_is_text, completion_is_text))]
    skip("row without messages")
    return []


def _split(said: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What came before the first answer is the prompt."""
    found, _ = messages(said, "user")
    first = next((at for at, message in enumerate(found) if role_of(message) == "assistant"), len(found))
    return found[:first], found[first:]


def _found(
    row: dict[str, Any], prompt: tuple[Any, ...], completion: tuple[Any, ...], texts: tuple[bool, bool]
) -> Found:
    row = _ours(row) if row.keys() >= _OURS else row
    scored, other_rewards = scores(row.get("rewards"))
    rollout = Rollout(
        id="",
        split="eval" if str(row.get("split", "train")).startswith(("eval", "val", "test")) else "train",
        step=whole(row.get("step")),
        prompt=prompt,
        completion=completion,
        prompt_is_text=texts[0],
        completion_is_text=texts[1],
        tool_calls=tool_calls(completion),
        rewards=scored,
        reward=given(row.get("reward", row.get("score"))),
        advantage=given(row.get("advantage")),
        finish=_FINISH.get(str(row.get("finish_reason")), "unknown"),
        columns={name: value for name, value in row.items() if name not in _said(row)}
        | ({"rewards": other_rewards} if other_rewards is not None else {}),
    )
    return Found(replace(rollout, **row[_FIELDS]) if _FIELDS in row else rollout, row.get("group"))


def _said(row: dict[str, Any]) -> set[str]:
    """What the rollout's own fields say of a line; the rest becomes columns."""
    talk = {"messages"} if isinstance(row.get("messages"), list) else _TALK - {"messages"}
    said = {*_OWN, *talk, "rewards"} | ({"score"} if "reward" not in row else set())
    step = number(row.get("step"))
    if row.get("step") is None or (step is not None and step == whole(step)):
        said.add("step")
    if row.get("split") in (None, "train", "eval"):
        said.add("split")
    if row.get("finish_reason") is None or str(row["finish_reason"]) in {*_FINISH, "unknown"}:
        said.add("finish_reason")
    return said


def _ours(row: dict[str, Any]) -> dict[str, Any]:
    """A line of our own `jsonl` sink: its facts as fields, and the words that plain JSON has for NaN as numbers."""
    counts = ("prompt_tokens", "completion_tokens", "policy_step")
    fields = {
        "finish": _FINISH.get(str(row.get("finish")), "unknown"),
        "error": row["error"] if isinstance(row.get("error"), str) else None,
        "time": _time(row.get("time")),
        **{name: whole(row[name]) for name in counts if number(row.get(name)) is not None},
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
