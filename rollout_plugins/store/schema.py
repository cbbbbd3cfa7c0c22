"""The columns of the store, and how rollouts become rows and rows become rollouts.

Numbers, names and texts people filter and sort by are real columns. Messages are structs of fixed fields: `role`,
`content` (readable text), `name`, `reasoning`, `tool_calls` (arguments as JSON text) and `rest`, JSON of whatever
does not fit the others exactly. Reading back, `rest` wins; so nothing is inferred and nothing is lost. A tool call's
`result` is null where it is the content of the message that `reply` points at, as it nearly always is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import accumulate
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Image, Placeholder, Rollout, Tokens, ToolCall

from rollout_plugins.messages import calls_of, text_of
from rollout_plugins.store.codec import clean, decode, encode, placeholder_for

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
        ("logprobs", pa.list_(pa.float64())),
        ("trainer_logprobs", pa.list_(pa.float64())),
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
    ("rest", _TEXT),
)
_REWARD_PREFIX = "reward/"
_JSON = ("columns", "extra", "marks")
# Counted from the rollout, so that charts and filters over a million rollouts need not open the nested columns.
_COUNTS = ("turns", "calls", "failed_calls")
_SCALARS = {
    name: kind
    for name, kind in _FIELDS
    if name not in {*_JSON, *_COUNTS, "rest"} and not isinstance(kind, (pa.ListType, pa.StructType))
}
_DEFAULTS = {f.name: f.default for f in fields(Rollout) if f.default is not MISSING} | {"id": ""}
_CALL_DEFAULTS = {f.name: f.default for f in fields(ToolCall) if f.default is not MISSING}
_TROUBLE = (Exception, SystemExit)  # what an object may raise for being looked at


def reward_column(name: str) -> str:
    """The column that holds one reward function's values, for filters and charts."""
    return _REWARD_PREFIX + name


def schema(reward_names: Iterable[str]) -> pa.Schema:
    """The schema of a run with these reward functions."""
    names = dict.fromkeys(name for name in reward_names if isinstance(name, str) and clean(name))
    rewards = [(reward_column(name), pa.float64()) for name in names]
    at = [name for name, _ in _FIELDS].index("prompt_tokens")
    columns = [*_FIELDS[:at], *rewards, *_FIELDS[at:]]
    return pa.schema(columns, metadata={"rollout_plugins.schema": str(VERSION)})


def to_batch(rollouts: Sequence[Rollout], target: pa.Schema, lost: list[Placeholder]) -> pa.RecordBatch:
    """Rows for the rollouts. Never fails on content.

    What can't be kept is a `Placeholder` where it was, or, in a column that takes only numbers or text, a mark
    `lost:<path>` beside it. Both are appended to `lost`.
    """
    rows = [_Row(rollout, lost) for rollout in rollouts]
    made = {name: _scalars(name, kind, rows) for name, kind in _SCALARS.items()}
    made["rewards"] = _rewards(rows)
    made["tool_calls"], made["calls"], made["failed_calls"] = _tool_calls(rows)
    made["prompt"], _ = _messages("prompt", rows)
    made["completion"], made["turns"] = _messages("completion", rows)
    made["images"] = _images(rows)
    made["tokens"] = _tokens(rows)
    for name in ("columns", "extra"):
        made[name] = pa.array([_object(row.mapping(name), lost) for row in rows], _TEXT)
    marks = [{**row.mapping("marks"), **row.marks} for row in rows]
    made["marks"] = pa.array([_object(value, lost) for value in marks], _TEXT)
    made["rest"] = pa.array([_object(row.rest, lost) for row in rows], _TEXT)
    names = [name.removeprefix(_REWARD_PREFIX) for name in target.names if name.startswith(_REWARD_PREFIX)]
    for name in names:
        made[reward_column(name)] = pa.array([row.rewards.get(name) for row in rows], pa.float64())
    return pa.RecordBatch.from_arrays([made[name] for name in target.names], schema=target)


class _Row:
    """A rollout on its way into columns, and what was noticed about it."""

    __slots__ = ("lost", "marks", "rest", "rewards", "rollout")

    def __init__(self, rollout: Rollout, lost: list[Placeholder]) -> None:
        self.rollout = rollout
        self.lost = lost
        self.marks: dict[str, str] = {}
        self.rest: dict[str, Any] = {}
        self.rewards: dict[Any, float | None] = {}

    def lose(self, value: Any, where: str, why: str) -> Placeholder:
        """Note a value that its column cannot take."""
        placeholder = placeholder_for(value, where, why)
        self.lost.append(placeholder)
        self.marks[f"lost:{placeholder.where}"] = str(placeholder)
        return placeholder

    def mapping(self, name: str) -> dict[Any, Any]:
        """A field that must hold a mapping."""
        value = getattr(self.rollout, name)
        if type(value) is dict:
            return value
        try:
            if isinstance(value, Mapping):
                return dict(value)
        except _TROUBLE:
            pass
        self.lose(value, name, "no mapping")
        return {}

    def sequence(self, name: str, kind: type) -> list[Any]:
        """A field that must hold records of one kind."""
        value = getattr(self.rollout, name)
        if not isinstance_(value, (list, tuple)):
            self.lose(value, name, "no list")
            return []
        kept = []
        for index, item in enumerate(value):
            if isinstance_(item, kind):
                kept.append(item)
            else:
                self.lose(item, f"{name}[{index}]", f"no {kind.__name__}")
        return kept

    def messages(self, name: str) -> Sequence[Any]:
        """Prompt or completion; one that is no list is taken for its only message."""
        value = getattr(self.rollout, name)
        if isinstance_(value, (list, tuple)):
            return value  # type: ignore[no-any-return]
        if value is None:
            self.lose(value, name, "no list")
            return ()
        return (value,)

    def fit(self, value: Any, kind: Any, where: str, default: Any = None) -> Any:
        """The value as its column takes it. Text no file takes stands in `rest`; another kind of value is lost."""
        if value is None and default is None:
            return None
        try:
            return _FIT[kind](value)
        except _TROUBLE:
            if kind == _TEXT and where in _SCALARS and type(value) is str:
                self.rest[where] = value
                return _text(value)
            found = self.lose(value, where, _WANTED[kind])
            return found.preview or None if kind == _TEXT and default is None else default


def isinstance_(value: Any, kind: Any) -> bool:
    """`isinstance` for objects that object to it."""
    try:
        return isinstance(value, kind)
    except _TROUBLE:
        return False


def _object(value: dict[Any, Any], lost: list[Placeholder]) -> str | None:
    return encode(value, lost) if value else None


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError
    return float(value)


def _whole(value: Any, bits: int = 64) -> int:
    number = int(value)
    if number != value or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError
    return number


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return str.__str__(value)


def _flag(value: Any) -> bool:
    if value not in (True, False):
        raise TypeError
    return bool(value)


_FIT: dict[Any, Callable[[Any], Any]] = {
    pa.int64(): _whole,
    pa.int32(): lambda value: _whole(value, 32),
    pa.float64(): _number,
    _TEXT: _string,
    pa.bool_(): _flag,
}
_WANTED = {
    pa.int64(): "no whole number of 64 bits",
    pa.int32(): "no whole number of 32 bits",
    pa.float64(): "no number",
    _TEXT: "no text",
    pa.bool_(): "neither True nor False",
}
_EXACT: dict[Any, set[type]] = {pa.int64(): {int}, pa.float64(): {float}, _TEXT: {str}, pa.bool_(): {bool}}


def _scalars(name: str, kind: Any, rows: Sequence[_Row]) -> pa.Array:
    values = [getattr(row.rollout, name) for row in rows]
    default = _DEFAULTS[name]
    if set(map(type, values)) <= _EXACT[kind] | ({type(None)} if default is None else set()):
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass  # an integer beyond 64 bits, or a lone surrogate
    return pa.array([row.fit(value, kind, name, default) for row, value in zip(rows, values, strict=True)], kind)


def _text(value: Any) -> str | None:
    """Readable text for a column; the exact value is kept elsewhere when this is not it."""
    if value is None:
        return None
    try:
        text = value if type(value) is str else text_of(value) if _is_bounded(value) else _VAST
        return text if clean(text) else text.encode("utf-8", "replace").decode()
    except _TROUBLE:  # an object that objects to being looked at
        return None


_VAST = "[too much to show]"


def _is_bounded(value: Any) -> bool:
    """Whether a value ends soon: lists that hold each other many times over are endless for whoever reads them out."""
    left, unread = 100_000, [value]
    while unread and left > 0:
        item = unread.pop()
        if isinstance(item, (list, tuple, dict)):
            left -= 1 + len(item)
            unread += item.values() if isinstance(item, dict) else item
    return not unread


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(list(accumulate(lengths, initial=0)), pa.int32())


def _list_of(kind: Any, lengths: Iterable[int], columns: Mapping[str, Any]) -> pa.ListArray:
    """A list column from flat child columns and the length of each row's list."""
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in kind
    ]
    return pa.ListArray.from_arrays(_offsets(lengths), pa.StructArray.from_arrays(arrays, fields=list(kind)))


def _columns(kind: Any) -> dict[str, list[Any]]:
    return {field.name: [] for field in kind}


def _rewards(rows: Sequence[_Row]) -> pa.ListArray:
    for row in rows:
        row.rewards = _rewards_of(row)
        if not all(type(name) is str and clean(name) for name in row.rewards):
            row.rest["rewards"] = row.rewards
    flat = [(_text(name), value) for row in rows for name, value in row.rewards.items()]
    columns = {"name": [name for name, _ in flat], "value": [value for _, value in flat]}
    return _list_of(_REWARD, (len(row.rewards) for row in rows), columns)


def _rewards_of(row: _Row) -> dict[Any, float | None]:
    rewards = row.mapping("rewards")
    if all(type(value) is float or value is None for value in rewards.values()):
        return rewards
    return {name: row.fit(value, pa.float64(), f"rewards.{_text(name)}") for name, value in rewards.items()}


def _tool_calls(rows: Sequence[_Row]) -> tuple[pa.ListArray, pa.Array, pa.Array]:
    """The calls, how many there were, and how many of those failed."""
    out = _columns(_TOOL_CALL)
    counts, failed = [], []
    for row in rows:
        calls = row.sequence("tool_calls", ToolCall)
        for index, call in enumerate(calls):
            _tool_call_row(call, out, row, f"tool_calls[{index}]")
        counts.append(len(calls))
        failed.append(
            sum(status in ("error", "unknown") for status in out["status"][len(out["status"]) - len(calls) :])
        )
    return _list_of(_TOOL_CALL, counts, out), pa.array(counts, pa.int64()), pa.array(failed, pa.int64())


def _tool_call_row(call: ToolCall, out: dict[str, list[Any]], row: _Row, where: str) -> None:
    rest: dict[str, Any] = {}
    result = call.result
    if result is None and call.reply is not None:
        rest["result"] = None
    elif type(result) is str and result == _answer(row.rollout.completion, call.reply):
        result = None
    for name, value in (("name", call.name), ("result", result), ("error", call.error)):
        if value is None or _is_exact(value):
            out[name].append(value)
        else:
            out[name].append(_text(value))
            rest[name] = value
    for name in ("turn", "position", "reply"):
        value = getattr(call, name)
        small = type(value) is int and 0 <= value < 2**31
        out[name].append(value if small else row.fit(value, pa.int32(), f"{where}.{name}", _CALL_DEFAULTS[name]))
    status, seconds = call.status, call.seconds
    out["status"].append(status if _is_exact(status) else row.fit(status, _TEXT, f"{where}.status", "ok"))
    exact = seconds is None or type(seconds) is float
    out["seconds"].append(seconds if exact else row.fit(seconds, pa.float64(), f"{where}.seconds"))
    out["arguments"].append(encode(call.arguments, row.lost))
    out["rest"].append(_object(rest, row.lost))


def _answer(completion: Any, reply: Any) -> str | None:
    """The text of the message that answered a call; None when that is anything but plain text."""
    if type(reply) is not int or type(completion) not in {tuple, list} or not 0 <= reply < len(completion):
        return None
    message = completion[reply]
    content = message.get("content") if type(message) is dict else None
    return content if _is_exact(content) else None


def _images(rows: Sequence[_Row]) -> pa.ListArray:
    out = _columns(_IMAGE)
    counts = []
    for row in rows:
        images = row.sequence("images", Image)
        for index, image in enumerate(images):
            for field in _IMAGE:
                default = "" if field.name == "hash" else None
                value = row.fit(getattr(image, field.name), field.type, f"images[{index}].{field.name}", default)
                out[field.name].append(value)
        counts.append(len(images))
    return _list_of(_IMAGE, counts, out)


def _tokens(rows: Sequence[_Row]) -> pa.StructArray:
    """All null, and free, unless the run keeps tokens."""
    kept = [_tokens_of(row) for row in rows]
    try:
        return pa.array(kept, _TOKENS)
    except _TROUBLE:
        return pa.array([_tokens_that_fit(row, values) for row, values in zip(rows, kept, strict=True)], _TOKENS)


def _tokens_of(row: _Row) -> dict[str, Any] | None:
    tokens = row.rollout.tokens
    if tokens is None:
        return None
    if not isinstance_(tokens, Tokens):
        row.lose(tokens, "tokens", "no Tokens")
        return None
    return {field.name: getattr(tokens, field.name) for field in _TOKENS}


def _tokens_that_fit(row: _Row, values: dict[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    fitting = {}
    for field in _TOKENS:
        try:
            fitting[field.name] = pa.array([values[field.name]], field.type).to_pylist()[0]
        except _TROUBLE:
            row.lose(values[field.name], f"tokens.{field.name}", "no list of such numbers")
            fitting[field.name] = None
    return fitting


def _messages(name: str, rows: Sequence[_Row]) -> tuple[pa.ListArray, pa.Array]:
    """The messages, and how many of them the assistant wrote."""
    flat: list[_Columns] = []
    counts, turns = [], []
    for row in rows:
        before = len(flat)
        flat += [_message(message, row.lost) for message in row.messages(name)]
        counts.append(len(flat) - before)
        turns.append(sum(message[0] == "assistant" for message in flat[before:]))
    calls = [call for message in flat for call in message[4]]
    columns: dict[str, Any] = {key: [m[at] for m in flat] for key, at in _AT.items()}
    call_columns = {key: [call[at] for call in calls] for at, key in enumerate(("id", "name", "arguments"))}
    columns["tool_calls"] = _list_of(_CALL, (len(message[4]) for message in flat), call_columns)
    return _list_of(_MESSAGE, counts, columns), pa.array(turns, pa.int64())


_TYPED = {"role": "role", "content": "content", "name": "name", "reasoning_content": "reasoning"}
_AT = {"role": 0, "content": 1, "name": 2, "reasoning": 3, "rest": 5}
_Calls = list[tuple[Any, Any, str]]
_Columns = tuple[Any, Any, Any, Any, _Calls, Any]


def _message(message: Any, lost: list[Placeholder]) -> _Columns:
    """The columns of one message."""
    if type(message) is dict and len(message) == 2:
        role, content = message.get("role"), message.get("content")
        if type(role) is str and type(content) is str and role.isascii() and content.isascii():
            return role, content, None, None, [], None  # what most of them are
    if type(message) is not dict:
        message = _as_dict(message)
    if type(message) is not dict:
        return None, _text(message) or "", None, None, [], encode(message, lost)
    try:
        return _typed_message(message, lost)
    except _TROUBLE:  # keys that object to being compared: exact in `rest`, if nowhere else
        return None, "", None, None, [], encode(message, lost)


def _typed_message(message: dict[Any, Any], lost: list[Placeholder]) -> _Columns:
    values = [message.get(key) for key in _TYPED]
    left = len(message)
    for value in values:
        if type(value) is str and (value.isascii() or clean(value)):
            left -= 1
    calls = _usual_calls(message["tool_calls"], lost) if "tool_calls" in message else []
    if left == bool(calls):
        return *values, calls or [], None  # type: ignore[return-value]
    whole = {key for key, value in zip(_TYPED, values, strict=True) if _is_exact(value)}
    whole |= {"tool_calls"} if calls else set()
    rest = encode({key: value for key, value in message.items() if key not in whole}, lost)
    return *map(_text, values), _readable_calls(message) if calls is None else calls, rest  # type: ignore[return-value]


def _is_exact(value: Any) -> bool:
    """Whether a column of text takes the value as it is."""
    return type(value) is str and (value.isascii() or clean(value))


def _as_dict(message: Any) -> Any:
    """A plain dict for any mapping, the message itself for everything else."""
    try:
        return dict(message) if isinstance(message, Mapping) else message
    except _TROUBLE:  # a mapping that does not map: stored as a placeholder
        return message


def _usual_calls(value: Any, lost: list[Placeholder]) -> _Calls | None:
    """Calls of the usual shape, which the columns hold exactly; None when one of them has another."""
    if type(value) is not list or not value or not all(map(_is_usual, value)):
        return None
    functions = [(call.get("id"), call["function"]) for call in value]
    return [(ident, function["name"], encode(function["arguments"], lost)) for ident, function in functions]


def _is_usual(call: Any) -> bool:
    if type(call) is not dict or type(call.get("type")) is not str or call["type"] != "function":
        return False
    ident, function = call.get("id", ""), call.get("function")
    return (
        len(call) == 2 + ("id" in call)
        and type(ident) is str
        and clean(ident)
        and type(function) is dict
        and function.keys() == {"name", "arguments"}
        and type(function["name"]) is str
        and clean(function["name"])
    )


def _readable_calls(message: dict[Any, Any]) -> _Calls:
    """Unusual calls stand in `rest` exactly; these columns only let people find them."""
    try:
        return [(_text(call.id), _text(call.name), encode(call.arguments)) for call in calls_of(message)]
    except _TROUBLE:
        return []


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Rollout]:
    """Rollouts from rows as `to_pylist` gives them."""
    return map(_rollout, rows)


def _rollout(row: Mapping[str, Any]) -> Rollout:
    values = {name: row[name] for name in _SCALARS}
    values["rewards"] = {pair["name"]: pair["value"] for pair in row["rewards"]}
    if row.get("rest"):
        values.update((name, value) for name, value in decode(row["rest"]).items() if name in values)
    completion = tuple(map(_read_message, row["completion"]))
    return Rollout(
        **values,
        **{name: decode(row[name]) if row[name] else {} for name in _JSON},
        tool_calls=tuple(_tool_call(call, completion) for call in row["tool_calls"]),
        prompt=tuple(map(_read_message, row["prompt"])),
        completion=completion,
        images=tuple(Image(**image) for image in row["images"]),
        tokens=Tokens(**row["tokens"]) if row["tokens"] else None,
    )


def _tool_call(row: Mapping[str, Any], completion: Sequence[Any]) -> ToolCall:
    values = {key: value for key, value in row.items() if key != "rest"}
    values["arguments"] = decode(values["arguments"])
    if values["result"] is None:
        values["result"] = _answer(completion, values["reply"])
    if row["rest"]:
        values.update(decode(row["rest"]))
    return ToolCall(**values)


def _read_message(row: Mapping[str, Any]) -> Any:
    rest = decode(row["rest"]) if row["rest"] else {}
    if type(rest) is not dict:
        return rest
    message: dict[Any, Any] = {}
    for key, column in _TYPED.items():
        if row[column] is not None:
            message[key] = row[column]
    if row["tool_calls"]:
        message["tool_calls"] = [_read_call(call) for call in row["tool_calls"]]
    message.update(rest)
    return message


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    ident = {} if call["id"] is None else {"id": call["id"]}
    return {**ident, "type": "function", "function": {"name": call["name"], "arguments": decode(call["arguments"])}}
