"""Turn stored prompts back into the rows of a training dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
from rollout_hookspecs import Image, Placeholder

from rollout_plugins.content.exact_json import decode
from rollout_plugins.errors import need

_TYPED = {"role": "role", "content": "content", "name": "name", "reasoning": "reasoning_content"}


def train_table(prompts: pa.Table) -> tuple[pa.Table, int]:
    """Return a table that TRL takes as its `train_dataset`, and how many prompts with images it leaves out.

    It has the columns of the original dataset, and what is known of each prompt, such as `pass_rate`.
    """
    rows = prompts.to_pylist()
    chosen = [row for row in rows if not _holds_images(row)]
    columns = [decode(row["columns"]) if row["columns"] else {} for row in chosen]
    is_text = all(row["prompt_is_text"] for row in chosen)
    messages = [[_message(message) for message in row["prompt"]] for row in chosen]
    made: dict[str, pa.Array] = {} if messages and not is_text else {"prompt": pa.array(_texts(messages), pa.string())}
    for name in dict.fromkeys(name for known in columns for name in known):
        made[name] = _column([known.get(name) for known in columns])
    facts = [name for name in prompts.column_names if name not in {"prompt", "columns", "prompt_is_text", "trend"}]
    for name in facts:
        made[name] = pa.array([row[name] for row in chosen], prompts.schema.field(name).type)
    table = pa.table(made)
    return table if "prompt" in made else _with_messages(messages, table), len(rows) - len(chosen)


def _texts(messages: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    return [some[0]["content"] for some in messages]


def _with_messages(messages: Sequence[Sequence[Mapping[str, Any]]], table: pa.Table) -> pa.Table:
    """Return the table with a column of messages in front, as `datasets` reads them.

    Whatever is not a text, such as tool calls, becomes a `Json()` feature: in an Arrow struct, the arguments of one
    call would be padded with nulls for those of all others.
    """
    values: dict[str, list[Any]] = {}
    for message in chain.from_iterable(messages):
        for key, value in message.items():
            values.setdefault(key, []).append(value)
    if all(isinstance(value, str) for value in chain.from_iterable(values.values())):
        return table.add_column(0, "prompt", pa.array(messages))
    datasets: Any = need("datasets")
    is_text = {key: all(isinstance(value, str) for value in known) for key, known in values.items()}
    fields = {key: datasets.Value("string") if text else datasets.Json() for key, text in is_text.items()}
    padded = [[{**dict.fromkeys(fields), **message} for message in some] for some in messages]
    column = datasets.Dataset.from_dict(
        {"prompt": padded}, features=datasets.Features({"prompt": datasets.List(fields)})
    )
    return datasets.concatenate_datasets([column, datasets.Dataset(table)], axis=1).data.table


def question(messages: Sequence[Mapping[str, Any]] | None) -> str:
    """Return what a person recognises a stored prompt by: the text of the last message of the user."""
    asked = [row for row in messages or () if row["role"] == "user"] or list(messages or ())
    return str(asked[-1]["content"] or "") if asked else ""


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    message = {key: row[column] for column, key in _TYPED.items() if row[column] is not None}
    if row["tool_calls"]:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call["name"], "arguments": decode(call["arguments"])}}
            for call in row["tool_calls"]
        ]
    rest = decode(row["rest"]) if row["rest"] else {}
    if not isinstance(rest, Mapping):  # the prompt was a list of something else than messages
        return {"role": "user", "content": str(rest)}
    return message | {key: value for key, value in rest.items() if value is not None}


def _holds_images(row: Mapping[str, Any]) -> bool:
    """Return whether an image, or a value that could not be kept, is in the prompt or in the columns."""
    texts = [message["rest"] for message in row["prompt"]] + [row["columns"]]
    return any(text and _has_record(decode(text)) for text in texts)


def _has_record(value: Any) -> bool:
    if isinstance(value, (Image, Placeholder)):
        return True
    inside: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if _is_list(value) else ()
    return any(map(_has_record, inside))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _column(values: Sequence[Any]) -> pa.Array:
    """Return a column of these values; of values that have no type in common, their JSON."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else orjson.dumps(value, default=str).decode() for value in values])
