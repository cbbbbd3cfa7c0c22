"""Find the message that answers each tool call, and the outcome of the call, for hosts, shapes, traces and viewers."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from rollout_hookspecs import ToolCall

from rollout_plugins.content.messages import Call, calls_of, field_of, role_of, text_of

ANSWERING = frozenset({"tool", "function", "ipython"})
"""Roles of messages that answer a call."""
Place: TypeAlias = tuple[int, int]
"""The index of the message that has the call, and the position of the call in it."""
FAILURES = {"error": "failed", "unknown": "no such tool", "not_run": "not run"}
"""What people read about a call that failed or did not run, by its status, if there is no error text."""
_FAILED = ("{'error': ", '{"error": ', "Error: ", "Traceback (most recent call last)")
_ROLLED_BACK = "rolled back: its result did not fit into the completion"


@dataclass(slots=True)
class ObservedCall:
    """The execution of a call that was observed while it ran."""

    error: str | None = None
    seconds: float = 0.0
    deferred: bool = False
    """Whether it is an async call, whose result follows the results of all synchronous calls of its turn."""


class PairedCall(NamedTuple):
    """A call and the index of the message that answers it."""

    place: Place
    call: Call
    reply: int | None


def pair_calls(messages: Sequence[Any], observed: Mapping[Place, ObservedCall] | None = None) -> list[PairedCall]:
    """Pair every call with the message that answers it: by id, otherwise by name, otherwise in order.

    Each message answers at most one call.
    """
    replies: dict[Place, int] = {}
    calls_so_far: list[tuple[Place, Call]] = []
    for turn, message in enumerate(messages):
        calls = {(turn, position): call for position, call in enumerate(calls_of(message))}
        if calls:
            calls_so_far += calls.items()
            replies.update(_answers(calls, messages, _right_after(messages, turn), observed or {}))
    replies.update(_later_answers(calls_so_far, messages, replies))
    return [PairedCall(place, call, replies.get(place)) for place, call in calls_so_far]


def read_tool_calls(
    completion: Sequence[Any],
    observed: Mapping[Place, ObservedCall] | None = None,
    *,
    tool_names: Collection[str] = (),
    is_watched: bool = False,
) -> tuple[ToolCall, ...]:
    """Return every call in the completion with its outcome, as observed or else as its reply shows.

    `observed` has the observed calls by their place, and `tool_names` the names of the tools. If `is_watched`, a call
    that is not in `observed` did not run.
    """
    observed_calls = observed or {}

    def tool_call(pair: PairedCall) -> ToolCall:
        (turn, position), call, reply = pair
        execution = observed_calls.get(pair.place)
        result = field_of(completion[reply], "content") if reply is not None else None
        status, error = call_outcome(call.name, result, reply, execution, tool_names=tool_names, is_watched=is_watched)
        return ToolCall(
            turn=turn,
            position=position,
            reply=reply,
            name=call.name,
            arguments=call.arguments,
            result=result,
            error=error,
            status=status,
            seconds=execution.seconds if execution is not None else None,
        )

    return tuple(map(tool_call, pair_calls(completion, observed_calls)))


def call_outcome(
    name: Any,
    result: Any,
    reply: int | None,
    execution: ObservedCall | None,
    *,
    tool_names: Collection[str],
    is_watched: bool,
) -> tuple[Any, str | None]:
    """Return the status and the error of a call, as observed or else as its name and its reply show."""
    if reply is None:
        return "not_run", _ROLLED_BACK if execution is not None else None
    if execution is not None:  # a tool that returns "Error: …" did run
        return ("ok" if execution.error is None else "error"), execution.error
    error = read_error(result)
    if isinstance(name, str) and tool_names and name not in tool_names:
        return "unknown", error or "no such tool"
    if error is None and not is_watched:
        return "ok", None
    return "error", error or "it was not called"


def read_error(content: Any) -> str | None:
    """Return the error in a tool's reply: `{'error': …}`, "Error: …" or a traceback; None if it is a result."""
    text = text_of(content)
    if not text.startswith(_FAILED):
        return None
    for read in (ast.literal_eval, json.loads):  # TRL writes errors as the repr of a Python dict
        try:
            value = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            return str(value.get("error"))
    return text


# --- pairing ---------------------------------------------------------------------------------------------------------


def _right_after(messages: Sequence[Any], turn: int) -> list[int]:
    """Return the indices of the answering messages that directly follow a turn."""
    end = turn + 1
    while end < len(messages) and role_of(messages[end]) in ANSWERING:
        end += 1
    return list(range(turn + 1, end))


def _answers(
    calls: Mapping[Place, Call], messages: Sequence[Any], free: list[int], observed: Mapping[Place, ObservedCall]
) -> dict[Place, int]:
    """Return the replies to the calls of one turn, and remove them from `free`."""
    # Ids are unique, names are not because two calls may use one tool: match all calls by id before any by name.
    places = list(calls)
    if len(free) == len(calls):  # otherwise some did not run, maybe deferred ones
        places.sort(key=lambda place: place in observed and observed[place].deferred)
    replies: dict[Place, int] = {}
    for may_answer in (_by_id, _by_name, _in_order):
        for place in places:
            if free and place not in replies:
                index = next((index for index in free if may_answer(calls[place], messages[index])), None)
                if index is not None:
                    replies[place] = index
                    free.remove(index)
    return replies


def _by_id(call: Call, message: Any) -> bool:
    return call.id is not None and field_of(message, "tool_call_id") == call.id


def _by_name(call: Call, message: Any) -> bool:
    return isinstance(call.name, str) and field_of(message, "name") == call.name and _in_order(call, message)


def _in_order(call: Call, message: Any) -> bool:
    """Return whether the message may answer the call, because it does not name another one."""
    call_id = field_of(message, "tool_call_id")
    return not call_id or call.id is None or call_id == call.id


def _later_answers(
    calls: Sequence[tuple[Place, Call]], messages: Sequence[Any], replies: Mapping[Place, int]
) -> dict[Place, int]:
    """Return replies that come after other messages, replies by their id."""
    unanswered = [(place, call) for place, call in calls if place not in replies and call.id is not None]
    if not unanswered:
        return {}
    taken = set(replies.values())
    later: dict[Place, int] = {}
    for place, call in unanswered:
        for index in range(place[0] + 1, len(messages)):
            if index not in taken and role_of(messages[index]) in ANSWERING and _by_id(call, messages[index]):
                later[place] = index
                taken.add(index)
                break
    return later


def failure_text(status: str, reason: str) -> str:
    """Return what people read about a call that failed or did not run."""
    if not reason:
        return FAILURES[status]
    return reason if status == "error" else f"{FAILURES[status]}: {reason}"
