"""Convert tool calls and their results to the columns in `schema`, and back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from rollout_hookspecs import Placeholder, ToolCall

from rollout_plugins.content.call_columns import CallColumns
from rollout_plugins.content.exact_json import decode, encode_all
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.store.column_values import Row, is_exact, json_of, list_of, readable, scalars
from rollout_plugins.store.schema import CALL_DEFAULTS, TEXT, TOOL_CALL

_SCALARS = {name: TOOL_CALL.field(name).type for name in ("turn", "position", "reply", "status", "seconds")}
Rest = dict[int, dict[str, Any]]


class CallArrays(NamedTuple):
    """The column of the calls of all rollouts, and the numbers of calls and of failed calls of each."""

    calls: pa.ListArray
    counts: pa.Array
    failed: pa.Array


def tool_calls(
    outcomes: CallColumns,
    rows: Sequence[Row],
    completion: MessageColumns,
    arguments: Sequence[str],
    lost: list[Placeholder],
) -> CallArrays:
    """Convert the calls of all rollouts. `arguments`: the calls' arguments as JSON, as the messages have them."""
    columns, starts = outcomes.columns, outcomes.starts
    if not starts[-1]:
        none = pa.array([0] * len(outcomes), pa.int64())
        return CallArrays(list_of(TOOL_CALL, starts, {}), none, none)
    out = {name: _scalar(name, kind, outcomes, rows) for name, kind in _SCALARS.items()}
    rest: Rest = {}
    out["result"] = pa.nulls(starts[-1], TEXT) if outcomes.matches_messages else _results(outcomes, completion, rest)
    out["name"], out["error"] = (_texts(name, columns[name], rest) for name in ("name", "error"))
    out["arguments"] = arguments if outcomes.matches_messages else encode_all(columns["arguments"], lost)
    out["rest"] = json_of([rest.get(at, {}) for at in range(starts[-1])], lost)
    states = out["status"].to_pylist()
    failed = [states[a:b].count("error") + states[a:b].count("unknown") for a, b in pairwise(starts)]
    counts = [b - a for a, b in pairwise(starts)]
    return CallArrays(list_of(TOOL_CALL, starts, out), pa.array(counts, pa.int64()), pa.array(failed, pa.int64()))


def _scalar(name: str, kind: Any, outcomes: CallColumns, rows: Sequence[Row]) -> pa.Array:
    default = CALL_DEFAULTS[name]

    def fit(at: int, value: Any) -> Any:
        place = bisect_right(outcomes.starts, at) - 1
        return rows[place].fit(value, kind, f"tool_calls[{at - outcomes.starts[place]}].{name}", default)

    return scalars(outcomes.columns[name], kind, default, fit)


def _texts(name: str, values: Sequence[Any], rest: Rest) -> pa.Array:
    """Return a column of text; values that it cannot hold exactly are also added to `rest`."""
    column = scalars(values, TEXT, None)
    if column is not None:
        return column
    inexact = {at: value for at, value in enumerate(values) if value is not None and not is_exact(value)}
    for at, value in inexact.items():
        rest.setdefault(at, {})[name] = value
    return pa.array([readable(value) if at in inexact else value for at, value in enumerate(values)], TEXT)


def _results(outcomes: CallColumns, completion: MessageColumns, rest: Rest) -> pa.Array:
    """Return the results that differ from the text of the message with the result."""
    values = list(outcomes.columns["result"])
    for place, (start, end) in enumerate(pairwise(outcomes.starts)):
        for at in range(start, end):
            reply = outcomes.columns["reply"][at]
            if values[at] is None and reply is not None:
                rest.setdefault(at, {})["result"] = None
            elif type(values[at]) is str and values[at] == _answer_in(completion, place, reply):
                values[at] = None
    return _texts("result", values, rest)


def _answer_in(talk: MessageColumns, place: int, reply: Any) -> str | None:
    start, end = talk.starts[place : place + 2]
    if type(reply) is not int or not 0 <= reply < end - start:
        return None
    return _answer([talk.message(start + reply)], 0)


def read_call(row: Mapping[str, Any], completion: Sequence[Any]) -> ToolCall:
    values = {key: value for key, value in row.items() if key != "rest"}
    values["arguments"] = decode(values["arguments"])
    if values["result"] is None:
        values["result"] = _answer(completion, values["reply"])
    if row["rest"]:
        values.update(decode(row["rest"]))
    return ToolCall(**values)


def _answer(completion: Sequence[Any], reply: Any) -> str | None:
    """Return the text of the message with a call's result, or None if it is not plain text."""
    if type(reply) is not int or not 0 <= reply < len(completion):
        return None
    message = completion[reply]
    content = message.get("content") if type(message) is dict else None
    return content if is_exact(content) else None
