"""Compute a stable id for each prompt, so that runs, steps and datasets can be joined by prompt.

The id is a hash of the prompt's content (roles, texts, tool calls), of its images, and of the dataset row and the
environment's seed where the dataset has a column for them: see `ROW_COLUMNS`. It does not depend on the run, the
step, the machine or the version of a library. A plain text has the id of a conversation of one user message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Image

from rollout_plugins.content.exact_json import decode
from rollout_plugins.content.hashing import content_hash, is_loaded, is_pil, pixel_hash
from rollout_plugins.content.messages import as_messages
from rollout_plugins.errors import need

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

#: Columns of a dataset that name its row, or the seed of the environment that the row starts.
ROW_COLUMNS = (
    "row", "row_id", "row_index", "index", "idx", "id", "example_id", "question_id", "problem_id", "task_id",
    "instance_id", "unique_id", "seed", "env_seed",
)  # fmt: skip
#: The columns of a run that `prompt_ids` reads.
COLUMNS = ("prompt", "columns")
_NAMES_ROW = re.compile(f'"({"|".join(ROW_COLUMNS)})":')
_MESSAGE_FIELDS = ("role", "content", "name", "reasoning", "rest")


def prompt_ids(table: pa.Table, *, with_row: bool = True) -> pa.Array:
    """Return the prompt id of each row of a table with a run's columns `prompt` and `columns`.

    Without `with_row`, the content alone counts: the same question in two rows of the dataset is one prompt.
    """
    # Siblings share their prompt, so each distinct prompt is hashed once.
    columns = pc.fill_null(_whole(table["columns"]).cast(pa.string()), "")
    keys = _joined_by_length([message_keys(table["prompt"]), columns]).dictionary_encode()
    first_rows = _first_rows(keys)
    distinct = table.select(COLUMNS).take(first_rows).to_pylist()
    ids = [_hash(_stored_messages(row["prompt"]), _row_facts(row["columns"]) if with_row else {}) for row in distinct]
    return pa.array(ids, pa.large_string()).take(keys.indices)


def prompt_id(row: Mapping[str, Any]) -> str:
    """Return the id that rollouts of this dataset row have, to join a dataset with what a run says of its prompts."""
    messages, _ = as_messages(row["prompt"], "user")
    images = row.get("images") or ([row["image"]] if row.get("image") is not None else [])
    columns = {name: value for name, value in row.items() if name != "prompt"}
    return _hash(_messages(messages, iter(images)), _facts_of(columns))


def tables_with_ids(
    run: StoredRun, columns: Sequence[str], *, with_row: bool = True, **filters: Any
) -> Iterator[pa.Table]:
    """Read these columns of a run, a few rows at a time, with a column `prompt_id` instead of the prompts."""
    for table in run.batches([*dict.fromkeys([*columns, *COLUMNS])], **filters):
        yield table.select(list(columns)).append_column("prompt_id", prompt_ids(table, with_row=with_row))


def message_keys(column: pa.ChunkedArray) -> pa.Array:
    """Return a key for each stored prompt or completion: equal keys mean equal messages."""
    conversations = _whole(column)
    messages = conversations.flatten()
    fields = [messages.field(name) for name in _MESSAGE_FIELDS]
    calls = messages.field("tool_calls")
    arguments = calls.flatten()
    fields.append(_joined(calls, _joined_by_length([arguments.field("name"), arguments.field("arguments")])))
    return _joined(conversations, _joined_by_length(fields))


def _joined_by_length(fields: Sequence[pa.Array]) -> pa.Array:
    """Join several columns of texts into one. Each text is preceded by its length, so that no two rows collide."""
    texts = [field.cast(pa.string()) for field in fields]
    pieces = [piece for text in texts for piece in (pc.binary_length(text).cast(pa.string()), text)]
    return pc.binary_join_element_wise(*pieces, ":", null_handling="replace", null_replacement="-")


def _joined(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Join the texts of each list's elements. `values` are those of all elements, in order."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, values), "\n")


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _first_rows(keys: pa.DictionaryArray) -> pa.Array:
    """Return the first row of each key, in the order of the keys."""
    np: Any = need("numpy")
    return pa.array(np.unique(keys.indices.to_numpy(), return_index=True)[1], pa.int64())


def _hash(messages: list[Any], facts: Mapping[str, Any]) -> str:
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    try:
        text = orjson.dumps([messages, facts], option=options, default=content_hash)
    except TypeError:  # lone surrogates, and integers beyond 64 bits
        text = content_hash([messages, facts]).encode()
    return blake2b(text, digest_size=8).hexdigest()


def _stored_messages(rows: Sequence[Mapping[str, Any]] | None) -> list[Any]:
    """Return the messages of a stored prompt in the form that is hashed."""
    messages: list[Any] = []
    for row in rows or ():
        rest = decode(row["rest"]) if row["rest"] else {}
        content = rest.get("content", row["content"]) if isinstance(rest, Mapping) else rest
        calls = [(call["name"], decode(call["arguments"])) for call in row["tool_calls"] or ()]
        messages.append([row["role"], *_text_and_images(content, iter(())), calls])
    return messages


def _messages(given: Sequence[Any], images: Iterator[Any]) -> list[Any]:
    """Return messages of a dataset in the form that is hashed."""
    messages: list[Any] = []
    for message in given:
        if not isinstance(message, Mapping):
            messages.append([None, *_text_and_images(message, images), []])
            continue
        functions = [call.get("function", call) for call in message.get("tool_calls") or ()]
        calls = [(function.get("name"), function.get("arguments")) for function in functions]
        messages.append([message.get("role"), *_text_and_images(message.get("content"), images), calls])
    return messages


def _text_and_images(content: Any, images: Iterator[Any]) -> tuple[str, list[str]]:
    """Return the text of a message's content and the hashes of its images.

    `images`: those of the dataset row, which fill image blocks that hold none themselves, as TRL does it.
    """
    if content is None or isinstance(content, str):
        return content or "", []
    texts, hashes = [], []
    for block in content if isinstance(content, Sequence) else [content]:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Mapping) and block.get("type") == "text":
            texts.append(str(block.get("text") or ""))
        elif isinstance(block, Mapping) and "image" in str(block.get("type")):
            hashes.append(_image_hash(block.get("image") or block.get("image_url") or next(images, None)))
        else:
            texts.append(content_hash(block))
    return "".join(texts), hashes


def _image_hash(image: Any) -> str:
    if isinstance(image, Image):
        return image.hash
    if is_pil(image):
        if not is_loaded(image):
            image.load()
        return pixel_hash(image)
    return content_hash(image)


def _row_facts(columns: str | None) -> dict[str, Any]:
    """Return what the stored dataset columns say of the row and the seed."""
    if not columns or not _NAMES_ROW.search(columns):
        return {}
    known = decode(columns)
    return _facts_of(known) if isinstance(known, Mapping) else {}


def _facts_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    nested = columns.get("extra_info")  # where verl's datasets have the index of the row
    facts = {**nested, **columns} if isinstance(nested, Mapping) else columns
    return {name: value for name in ROW_COLUMNS if isinstance(value := facts.get(name), (str, int))}
