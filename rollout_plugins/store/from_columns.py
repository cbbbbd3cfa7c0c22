"""Rows become rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Image, Rollout, Tokens, ToolCall

from rollout_plugins.store.codec import decode
from rollout_plugins.store.row import answer
from rollout_plugins.store.schema import JSON, SCALARS, TYPED


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Rollout]:
    """Rollouts from rows as `to_pylist` gives them."""
    return map(_rollout, rows)


def _rollout(row: Mapping[str, Any]) -> Rollout:
    values = {name: row[name] for name in SCALARS}
    values["rewards"] = {pair["name"]: pair["value"] for pair in row["rewards"]}
    if row.get("rest"):
        values.update((name, value) for name, value in decode(row["rest"]).items() if name in values)
    completion = tuple(map(_read_message, row["completion"]))
    return Rollout(
        **values,
        **{name: decode(row[name]) if row[name] else {} for name in JSON},
        tool_calls=tuple(_tool_call(call, completion) for call in row["tool_calls"]),
        prompt=tuple(map(_read_message, row["prompt"])),
        completion=completion,
        images=tuple(Image(**image) for image in row["images"]),
        tokens=Tokens(**row["tokens"]) if row.get("tokens") else None,
    )


def _tool_call(row: Mapping[str, Any], completion: Sequence[Any]) -> ToolCall:
    values = {key: value for key, value in row.items() if key != "rest"}
    values["arguments"] = decode(values["arguments"])
    if values["result"] is None:
        values["result"] = answer(completion, values["reply"])
    if row["rest"]:
        values.update(decode(row["rest"]))
    return ToolCall(**values)


def _read_message(row: Mapping[str, Any]) -> Any:
    rest = decode(row["rest"]) if row["rest"] else {}
    if type(rest) is not dict:
        return rest
    message: dict[Any, Any] = {}
    for key, column in TYPED.items():
        if row[column] is not None:
            message[key] = row[column]
    if row["tool_calls"]:
        message["tool_calls"] = [_read_call(call) for call in row["tool_calls"]]
    message.update(rest)
    return message


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    ident = {} if call["id"] is None else {"id": call["id"]}
    return {**ident, "type": "function", "function": {"name": call["name"], "arguments": decode(call["arguments"])}}
