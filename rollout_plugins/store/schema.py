"""The columns of the store, and how rollouts become rows and rows become rollouts.

Numbers, names and texts people filter and sort by are real columns. Messages are structs of fixed fields: `role`,
`content` (readable text), `name`, `reasoning`, `tool_calls` (arguments as JSON text) and `rest`, JSON of whatever
does not fit the others exactly. Reading back, `rest` wins; so nothing is inferred and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Image, Placeholder, Rollout, Tokens, ToolCall

from rollout_plugins.messages import calls_of, role_of, text_of
from rollout_plugins.store.codec import clean, decode, encode

VERSION = 1

_TEXT = pa.large_string()
_CALL = pa.struct([("id", _TEXT), ("name", _TEXT), ("arguments", _TEXT)])
_MESSAGE = pa.struct(
    [
        ("role", _TEXT),
        ("content", _TEXT),
        ("name", _TEXT),
        ("reasoning", _TEXT),
        ("tool_calls", pa.list_(_CALL)),
        ("rest", _TEXT),
    ]
)
_TOOL_CALL = pa.struct(
    [
        ("turn", pa.int32()),
        ("position", pa.int32()),
        ("reply", pa.int32()),
        ("name", _TEXT),
        ("arguments", _TEXT),
        ("result", _TEXT),
        ("error", _TEXT),
        ("status", _TEXT),
        ("seconds", pa.float64()),
        ("rest", _TEXT),
    ]
)
_IMAGE = pa.struct(
    [
        ("hash", _TEXT),
        ("path", _TEXT),
        ("uri", _TEXT),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("note", _TEXT),
    ]
)
_REWARD = pa.struct([("name", _TEXT), ("value", pa.float64())])
_TOKENS = pa.struct(
    [
        ("prompt", pa.list_(pa.int32())),
        ("completion", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("trainer_logprobs", pa.list_(pa.float32())),
    ]
)
_INTEGERS = ("attempt", "step", "policy_step", "generation", "rank", "index", "group", "group_size")
_FIELDS: tuple[tuple[str, Any], ...] = (
    ("id", _TEXT),
    ("run_id", _TEXT),
    ("split", _TEXT),
    *((name, pa.int64()) for name in _INTEGERS),
    ("time", pa.float64()),
    ("reward", pa.float64()),
    ("advantage", pa.float64()),
    ("prompt_tokens", pa.int64()),
    ("completion_tokens", pa.int64()),
    ("turns", pa.int64()),
    ("calls", pa.int64()),
    ("failed_calls", pa.int64()),
    ("finish", _TEXT),
    ("error", _TEXT),
    ("prompt_is_text", pa.bool_()),
    ("completion_is_text", pa.bool_()),
    ("rewards", pa.list_(_REWARD)),
    ("tool_calls", pa.list_(_TOOL_CALL)),
    ("prompt", pa.list_(_MESSAGE)),
    ("completion", pa.list_(_MESSAGE)),
    ("images", pa.list_(_IMAGE)),
    ("columns", _TEXT),
    ("extra", _TEXT),
    ("marks", _TEXT),
    ("rendered", _TEXT),
    ("tokens", _TOKENS),
)
_REWARD_PREFIX = "reward/"
_JSON = ("columns", "extra", "marks")
# Counted from the rollout, so that charts and filters over a million rollouts need not open the nested columns.
_COUNTS: dict[str, Callable[[Rollout], int]] = {
    "turns": lambda r: sum(role_of(message) == "assistant" for message in r.completion),
    "calls": lambda r: len(r.tool_calls),
    "failed_calls": lambda r: sum(call.status in ("error", "unknown") for call in r.tool_calls),
}


_NOT_PLAIN = {*_JSON, *_COUNTS}


def reward_column(name: str) -> str:
    """The column that holds one reward function's values, for filters and charts."""
    return _REWARD_PREFIX + name


def schema(reward_names: Iterable[str]) -> pa.Schema:
    """The schema of a run with these reward functions."""
    rewards = [(reward_column(name), pa.float64()) for name in reward_names if clean(name)]
    at = [name for name, _ in _FIELDS].index("prompt_tokens")
    fields = [*_FIELDS[:at], *rewards, *_FIELDS[at:]]
    return pa.schema(fields, metadata={"rollout_plugins.schema": str(VERSION)})


def to_batch(rollouts: Sequence[Rollout], target: pa.Schema, lost: list[Placeholder]) -> pa.RecordBatch:
    """Rows for the rollouts. Never fails on content; what can't be kept is a placeholder, appended to `lost`."""
    made = {
        "rewards": _rewards(rollouts),
        "tool_calls": _tool_calls([r.tool_calls for r in rollouts], lost),
        "prompt": _messages([r.prompt for r in rollouts], lost),
        "completion": _messages([r.completion for r in rollouts], lost),
        "images": _images([r.images for r in rollouts]),
        "tokens": _tokens([r.tokens for r in rollouts]),
    }
    for name in _JSON:
        made[name] = pa.array([_json_object(getattr(r, name), lost) for r in rollouts], _TEXT)
    for name, count in _COUNTS.items():
        made[name] = pa.array([count(r) for r in rollouts], pa.int64())
    arrays = []
    for column in target:
        name = column.name
        if name in made:
            arrays.append(made[name])
        elif name.startswith(_REWARD_PREFIX):
            key = name.removeprefix(_REWARD_PREFIX)
            arrays.append(pa.array([_number(r.rewards.get(key)) for r in rollouts], pa.float64()))
        else:
            arrays.append(_scalars([getattr(r, name) for r in rollouts], column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _json_object(value: Any, lost: list[Placeholder]) -> str | None:
    return encode(value, lost) if value else None


def _number(value: Any) -> float | None:
    """A float for whatever number this is; None for None and for what is no number."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None


def _text(value: Any) -> str | None:
    """A valid string for a column; the exact value is kept elsewhere when this is not it."""
    if value is None:
        return None
    try:
        text = value if type(value) is str else text_of(value)
        return text if clean(text) else text.encode("utf-8", "replace").decode()
    except Exception:  # an object that objects to being looked at
        return None


_CONVERT: dict[Any, Callable[[Any], Any]] = {pa.int64(): _whole, pa.float64(): _number, _TEXT: _text, pa.bool_(): bool}


def _scalars(values: list[Any], kind: Any) -> pa.Array:
    convert = _CONVERT[kind]
    return pa.array([convert(value) for value in values], kind)


def _offsets(lengths: Iterable[int]) -> pa.Array:
    total, out = 0, [0]
    for length in lengths:
        total += length
        out.append(total)
    return pa.array(out, pa.int32())


def _list_of(kind: Any, lengths: Iterable[int], columns: Mapping[str, Any]) -> pa.ListArray:
    """A list column from flat child columns and the length of each row's list."""
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in kind
    ]
    return pa.ListArray.from_arrays(_offsets(lengths), pa.StructArray.from_arrays(arrays, fields=list(kind)))


def _columns(kind: Any) -> dict[str, list[Any]]:
    return {field.name: [] for field in kind}


def _rewards(rollouts: Sequence[Rollout]) -> pa.ListArray:
    flat = [(_text(name), _number(value)) for r in rollouts for name, value in r.rewards.items()]
    columns = {"name": [name for name, _ in flat], "value": [value for _, value in flat]}
    return _list_of(_REWARD, (len(r.rewards) for r in rollouts), columns)


def _tool_calls(rows: Sequence[Sequence[ToolCall]], lost: list[Placeholder]) -> pa.ListArray:
    out = _columns(_TOOL_CALL)
    for call in (call for row in rows for call in row):
        out["turn"].append(call.turn)
        out["position"].append(call.position)
        out["reply"].append(call.reply)
        out["arguments"].append(encode(call.arguments, lost))
        out["status"].append(call.status)
        out["seconds"].append(_number(call.seconds))
        rest = {}
        for name in ("name", "result", "error"):
            value = getattr(call, name)
            out[name].append(_text(value))
            if value is not None and not (type(value) is str and clean(value)):
                rest[name] = value
        out["rest"].append(encode(rest, lost) if rest else None)
    return _list_of(_TOOL_CALL, map(len, rows), out)


def _images(rows: Sequence[Sequence[Image]]) -> pa.ListArray:
    out = _columns(_IMAGE)
    for image in (image for row in rows for image in row):
        for field in _IMAGE:
            value = getattr(image, field.name)
            out[field.name].append(_text(value) if field.type == _TEXT else value)
    return _list_of(_IMAGE, map(len, rows), out)


def _tokens(rows: Sequence[Tokens | None]) -> pa.StructArray:
    """All null, and free, unless the run keeps tokens."""
    kept = [{f.name: getattr(t, f.name) for f in _TOKENS} if t is not None else None for t in rows]
    return pa.array(kept, _TOKENS)


def _messages(rows: Sequence[Sequence[Any]], lost: list[Placeholder]) -> pa.ListArray:
    out = _columns(_MESSAGE)
    calls = _columns(_CALL)
    call_counts = []
    for message in (message for row in rows for message in row):
        before = len(calls["id"])
        rest = _message(message, out, calls, lost)
        out["rest"].append(rest)
        call_counts.append(len(calls["id"]) - before)
    flat: dict[str, Any] = {**out, "tool_calls": _list_of(_CALL, call_counts, calls)}
    return _list_of(_MESSAGE, map(len, rows), flat)


_TYPED = (("role", "role"), ("content", "content"), ("name", "name"), ("reasoning_content", "reasoning"))


def _message(message: Any, out: dict[str, list[Any]], calls: dict[str, list[Any]], lost: list[Placeholder]) -> Any:
    """Append one message's columns; the return value is its `rest`."""
    if type(message) is not dict:
        message = _as_dict(message)
    if type(message) is not dict:
        for name in ("role", "name", "reasoning"):
            out[name].append(None)
        out["content"].append(_text(message) or "")
        return encode(message, lost)
    left = len(message)
    rest: dict[Any, Any] = {}
    for key, column in _TYPED:
        value = message.get(key)
        if type(value) is str and clean(value):
            out[column].append(value)
            left -= 1
        else:
            out[column].append(_text(value))
    if "tool_calls" in message and _exact_calls(message["tool_calls"], calls, lost):
        left -= 1
    elif "tool_calls" in message:
        rest["tool_calls"] = message["tool_calls"]
        _readable_calls(message, calls, lost)
    if left == len(rest):
        return encode(rest, lost) if rest else None
    typed = {key for key, _ in _TYPED}
    for key, value in message.items():
        if key == "tool_calls" or (key in typed and type(value) is str and clean(value)):
            continue
        rest[key] = value
    return encode(rest, lost)


def _as_dict(message: Any) -> Any:
    """A plain dict for any mapping, the message itself for everything else."""
    try:
        return dict(message) if isinstance(message, Mapping) else message
    except Exception:  # a mapping that does not map: stored as a placeholder
        return message


def _exact_calls(value: Any, calls: dict[str, list[Any]], lost: list[Placeholder]) -> bool:
    """Store calls of the usual shape in columns alone; say whether that could be done exactly."""
    if type(value) is not list or not value or not all(map(_is_usual, value)):
        return False
    for call in value:
        calls["id"].append(call.get("id"))
        calls["name"].append(call["function"]["name"])
        calls["arguments"].append(encode(call["function"]["arguments"], lost))
    return True


def _is_usual(call: Any) -> bool:
    if type(call) is not dict or call.get("type") != "function" or not isinstance(call.get("id", ""), str):
        return False
    function = call.get("function")
    return (
        len(call) == 2 + ("id" in call)
        and clean(call.get("id", ""))
        and type(function) is dict
        and function.keys() == {"name", "arguments"}
        and type(function["name"]) is str
        and clean(function["name"])
    )


def _readable_calls(message: Any, calls: dict[str, list[Any]], lost: list[Placeholder]) -> None:
    """Unusual calls stand in `rest` exactly; these columns only let people find them."""
    for call in calls_of(message):
        calls["id"].append(_text(call.id))
        calls["name"].append(_text(call.name))
        calls["arguments"].append(encode(call.arguments, lost))


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Rollout]:
    """Rollouts from rows as `to_pylist` gives them."""
    return map(_rollout, rows)


def _rollout(row: Mapping[str, Any]) -> Rollout:
    plain = {name: row[name] for name, kind in _FIELDS if kind in _CONVERT and name not in _NOT_PLAIN}
    return Rollout(
        **plain,
        **{name: decode(row[name]) if row[name] else {} for name in _JSON},
        rewards={pair["name"]: pair["value"] for pair in row["rewards"]},
        tool_calls=tuple(map(_tool_call, row["tool_calls"])),
        prompt=tuple(map(_read_message, row["prompt"])),
        completion=tuple(map(_read_message, row["completion"])),
        images=tuple(Image(**image) for image in row["images"]),
        tokens=Tokens(**row["tokens"]) if row["tokens"] else None,
    )


def _tool_call(row: Mapping[str, Any]) -> ToolCall:
    values = {key: value for key, value in row.items() if key != "rest"}
    values["arguments"] = decode(values["arguments"])
    if row["rest"]:
        values.update(decode(row["rest"]))
    return ToolCall(**values)


def _read_message(row: Mapping[str, Any]) -> Any:
    rest = decode(row["rest"]) if row["rest"] else {}
    if type(rest) is not dict:
        return rest
    message: dict[Any, Any] = {}
    for key, column in _TYPED:
        if row[column] is not None:
            message[key] = row[column]
    if row["tool_calls"]:
        message["tool_calls"] = [_read_call(call) for call in row["tool_calls"]]
    message.update(rest)
    return message


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    ident = {} if call["id"] is None else {"id": call["id"]}
    return {**ident, "type": "function", "function": {"name": call["name"], "arguments": decode(call["arguments"])}}
