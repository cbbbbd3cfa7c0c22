"""Convert rollouts to the columns in `schema`, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Image, Placeholder, Rollout, Tokens, ToolCall

from rollout_plugins.content.call_columns import CallColumns
from rollout_plugins.content.exact_json import decode
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.store.arrow_calls import read_call, tool_calls
from rollout_plugins.store.arrow_messages import messages, read_message
from rollout_plugins.store.arrow_tokens import tokens
from rollout_plugins.store.column_values import Row, is_exact, json_of, list_of, readable, scalars, starts_of
from rollout_plugins.store.schema import DEFAULTS, IMAGE, JSON, REWARD, SCALARS, SCHEMA


def to_batch(rollouts: Sequence[Rollout], lost: list[Placeholder]) -> pa.RecordBatch:
    """Convert rollouts to rows. Never fails because of a rollout's content.

    A value that cannot be stored becomes a `Placeholder`, or, in a column of numbers or text, a mark `lost:<path>`.
    Both are appended to `lost`.
    """
    drafts = RolloutColumns.from_rollouts(rollouts)
    rows = [Row(drafts, place, lost) for place in range(len(drafts))]
    columns = {name: _scalars(name, kind, drafts, rows) for name, kind in SCALARS.items()}
    columns["rewards"] = _rewards(drafts, rows)
    columns["prompt"] = messages(_talk("prompt", drafts, rows), lost).column
    completion = _talk("completion", drafts, rows)
    completion_columns = messages(completion, lost)
    columns["completion"], columns["turns"] = completion_columns.column, completion_columns.turns
    calls = tool_calls(_outcomes(drafts, rows), rows, completion, completion_columns.arguments, lost)
    columns["tool_calls"], columns["calls"], columns["failed_calls"] = calls
    columns["images"] = _images(drafts, rows)
    columns["tokens"] = tokens(drafts["tokens"], rows)
    for name in ("columns", "extra"):
        columns[name] = json_of(_mappings(name, drafts, rows), lost)
    marks = zip(_mappings("marks", drafts, rows), rows, strict=True)
    columns["marks"] = json_of(
        [
            {**completion_columns, **row.marks} if row.marks else completion_columns
            for completion_columns, row in marks
        ],
        lost,
    )
    columns["rest"] = json_of([row.rest for row in rows], lost)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _columns(kind: Any) -> dict[str, list[Any]]:
    return {field.name: [] for field in kind}


def _scalars(name: str, kind: Any, drafts: RolloutColumns, rows: Sequence[Row]) -> pa.Array:
    default = DEFAULTS[name]
    return scalars(drafts[name], kind, default, lambda at, value: rows[at].fit(value, kind, name, default))


def _talk(name: str, drafts: RolloutColumns, rows: Sequence[Row]) -> MessageColumns:
    talk = drafts[name]
    return talk if isinstance(talk, MessageColumns) else MessageColumns([row.messages(name) for row in rows], "")


def _outcomes(drafts: RolloutColumns, rows: Sequence[Row]) -> CallColumns:
    calls = drafts["tool_calls"]
    return (
        calls if isinstance(calls, CallColumns) else CallColumns(row.sequence("tool_calls", ToolCall) for row in rows)
    )


def _mappings(name: str, drafts: RolloutColumns, rows: Sequence[Row]) -> Sequence[dict[Any, Any]]:
    values = drafts[name]
    return values if set(map(type, values)) <= {dict} else [row.mapping(name) for row in rows]


def _rewards(drafts: RolloutColumns, rows: Sequence[Row]) -> pa.ListArray:
    fitting = [
        _numeric_rewards(rewards, row) for rewards, row in zip(_mappings("rewards", drafts, rows), rows, strict=True)
    ]
    names = list(chain.from_iterable(fitting))
    if not all(map(is_exact, names)):
        for rewards, row in zip(fitting, rows, strict=True):
            if not all(map(is_exact, rewards)):
                row.rest["rewards"] = rewards
        names = list(map(readable, names))
    columns = {"name": names, "value": list(chain.from_iterable(map(dict.values, fitting)))}
    return list_of(REWARD, starts_of(map(len, fitting)), columns)


def _numeric_rewards(rewards: dict[Any, Any], row: Row) -> dict[Any, float | None]:
    if set(map(type, rewards.values())) <= {float, type(None)}:
        return rewards
    return {name: row.fit(value, pa.float64(), f"rewards.{readable(name)}") for name, value in rewards.items()}


def _images(drafts: RolloutColumns, rows: Sequence[Row]) -> pa.ListArray:
    out = _columns(IMAGE)
    if set(map(type, drafts["images"])) <= {tuple, list} and not any(drafts["images"]):
        return list_of(IMAGE, [0] * (len(rows) + 1), out)
    counts = []
    for row in rows:
        images = row.sequence("images", Image)
        for index, image in enumerate(images):
            for field in IMAGE:
                default = "" if field.name == "hash" else None
                value = row.fit(getattr(image, field.name), field.type, f"images[{index}].{field.name}", default)
                out[field.name].append(value)
        counts.append(len(images))
    return list_of(IMAGE, starts_of(counts), out)


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Rollout]:
    """Yield rollouts from rows in the form of `to_pylist`."""
    return map(_rollout, rows)


def _rollout(row: Mapping[str, Any]) -> Rollout:
    values = {name: row[name] for name in SCALARS}
    values["rewards"] = {pair["name"]: pair["value"] for pair in row["rewards"]}
    if row.get("rest"):
        values.update((name, value) for name, value in decode(row["rest"]).items() if name in values)
    completion = tuple(map(read_message, row["completion"]))
    return Rollout(
        **values,
        **{name: decode(row[name]) if row[name] else {} for name in JSON},
        tool_calls=tuple(read_call(call, completion) for call in row["tool_calls"]),
        prompt=tuple(map(read_message, row["prompt"])),
        completion=completion,
        images=tuple(Image(**image) for image in row["images"]),
        tokens=Tokens(**row["tokens"]) if row.get("tokens") else None,
    )
