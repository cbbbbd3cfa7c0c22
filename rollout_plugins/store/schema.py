"""The columns of the store.

Numbers, names and texts that people filter and sort by have columns of their own. Messages are structs: `role`,
`content` (readable text), `name`, `reasoning`, `tool_calls` (with arguments as JSON) and `rest`, JSON of everything
that does not fit the other fields exactly. When a message is read, `rest` takes precedence, so nothing is guessed and
nothing is lost. A tool call's `result` is null if it equals the content of the message to which `reply` points, which
is nearly always so.

Every file has exactly these columns, whatever reward functions there are. So any tool can read the files of a run as
one table, even if attempts have different reward functions. In version 1, each function also had a column
`reward/<name>`. Readers of version 2 derive that column from `rewards`, for files of both versions.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Rollout, ToolCall

VERSION = 2

TEXT = pa.large_string()
CALL = pa.struct([("id", TEXT), ("name", TEXT), ("arguments", TEXT)])
MESSAGE = pa.struct(
    [
        ("role", TEXT),
        ("content", TEXT),
        ("name", TEXT),
        ("reasoning", TEXT),
        ("tool_calls", pa.list_(CALL)),
        ("rest", TEXT),
    ]
)
TOOL_CALL = pa.struct(
    [
        ("turn", pa.int32()),
        ("position", pa.int32()),
        ("reply", pa.int32()),
        ("name", TEXT),
        ("arguments", TEXT),
        ("result", TEXT),
        ("error", TEXT),
        ("status", TEXT),
        ("seconds", pa.float64()),
        ("rest", TEXT),
    ]
)
IMAGE = pa.struct(
    [
        ("hash", TEXT),
        ("path", TEXT),
        ("uri", TEXT),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("note", TEXT),
    ]
)
REWARD = pa.struct([("name", TEXT), ("value", pa.float64())])
TOKENS = pa.struct(
    [
        ("prompt", pa.list_(pa.int32())),
        ("completion", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float64())),
        ("trainer_logprobs", pa.list_(pa.float64())),
        ("reference_logprobs", pa.list_(pa.float64())),
    ]
)
_INTEGERS = ("attempt", "step", "policy_step", "generation", "rank", "index", "group", "group_size")
FIELDS: tuple[tuple[str, Any], ...] = (
    ("id", TEXT),
    ("run_id", TEXT),
    ("split", TEXT),
    *((name, pa.int64()) for name in _INTEGERS),
    ("time", pa.float64()),
    ("reward", pa.float64()),
    ("advantage", pa.float64()),
    ("prompt_tokens", pa.int64()),
    ("completion_tokens", pa.int64()),
    ("turns", pa.int64()),
    ("calls", pa.int64()),
    ("failed_calls", pa.int64()),
    ("finish", TEXT),
    ("error", TEXT),
    ("prompt_is_text", pa.bool_()),
    ("completion_is_text", pa.bool_()),
    ("rewards", pa.list_(REWARD)),
    ("tool_calls", pa.list_(TOOL_CALL)),
    ("prompt", pa.list_(MESSAGE)),
    ("completion", pa.list_(MESSAGE)),
    ("images", pa.list_(IMAGE)),
    ("columns", TEXT),
    ("extra", TEXT),
    ("marks", TEXT),
    ("rendered", TEXT),
    ("tokens", TOKENS),
    ("rest", TEXT),
)
TYPES: dict[str, pa.DataType] = dict(FIELDS)
# The prefix of a reward function's name in filters and charts.
REWARD_PREFIX = "reward/"
JSON = ("columns", "extra", "marks")
# The columns that people filter, sort and count by. The others are only read for complete rollouts.
LIGHT = tuple(
    name
    for name, kind in FIELDS
    if name == "rewards" or not (name in {*JSON, "rendered", "rest"} or pa.types.is_nested(kind))
)
HEAVY = tuple(name for name, _ in FIELDS if name not in LIGHT)
# Counted from the rollout, so that filters over a million rollouts do not have to read nested columns.
COUNTS = ("turns", "calls", "failed_calls")
SCALARS = {
    name: kind
    for name, kind in FIELDS
    if name not in {*JSON, *COUNTS, "rest"} and not isinstance(kind, (pa.ListType, pa.StructType))
}
# The keys of a message that have columns of their own, with these columns.
TYPED = {"role": "role", "content": "content", "name": "name", "reasoning_content": "reasoning"}
DEFAULTS = {f.name: f.default for f in fields(Rollout) if f.default is not MISSING} | {"id": ""}
CALL_DEFAULTS = {f.name: f.default for f in fields(ToolCall) if f.default is not MISSING}

SCHEMA = pa.schema(FIELDS, metadata={"rollout_plugins.schema": str(VERSION)})
