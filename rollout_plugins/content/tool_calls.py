"""Which message answers which tool call, and what came of it. Hosts, shapes, traces and viewers all read it here."""

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
"""Index of the message that asks, and the call's position in it."""
FAILURES = {"error": "failed", "unknown": "no such tool", "not_run": "not run"}
"""What people read of a call that failed or was not run and gave no reason, by its status."""
_FAILED = ("{'error': ", '{"error": ', "Error: ", "Traceback (most recent call last)")
_ROLLED_BACK = "rolled back: its result did not fit into the completion"


@dataclass(slots=True)
class Ran:
    """A call that was watched while it ran."""

    error: str | None = None
    seconds: float = 0.0
    deferred: bool = False
    """An async call: its result comes after the results of all calls that ran at once."""


class Asked(NamedTuple):
    """A call, and the index of the message that answers it."""

    place: Place
    call: Call
    reply: int | None


def paired(messages: Sequence[Any], ran: Mapping[Place, Ran] | None = None) -> list[Asked]:
    """Every call with its answer, found by id, then by name, then in order. A message answers one call."""
    found: dict[Place, int] = {}
    asked: list[tuple[Place, Call]] = []
    for turn, message in enumerate(messages):
        calls = {(turn, position): call for position, call in enumerate(calls_of(message))}
        if calls:
            asked += calls.items()
            found.update(_answers(calls, messages, _right_after(messages, turn), ran or {}))
    found.update(_later_answers(asked, messages, found))
    return [Asked(place, call, found.get(place)) for place, call in asked]


def tool_calls(
    completion: Sequence[Any],
    ran: Mapping[Place, Ran] | None = None,
    *,
    known: Collection[str] = (),
    is_watched: bool = False,
) -> tuple[ToolCall, ...]:
    """Every call in the completion with its outcome: as it ran where it was watched, else as its answer says.

    ran: calls that were watched, by their place.
    known: names of the tools, where they are known.
    is_watched: whether a call that is not in `ran` did not run.
    """
    seen = ran or {}

    def tool_call(asked: Asked) -> ToolCall:
        (turn, position), call, reply = asked
        watched = seen.get(asked.place)
        result = field_of(completion[reply], "content") if reply is not None else None
        status, error = fate(call.name, result, reply, watched, known=known, is_watched=is_watched)
        return ToolCall(
            turn=turn,
            position=position,
            reply=reply,
            name=call.name,
            arguments=call.arguments,
            result=result,
            error=error,
            status=status,
            seconds=watched.seconds if watched is not None else None,
        )

    return tuple(map(tool_call, paired(completion, seen)))


def fate(
    name: Any, result: Any, reply: int | None, ran: Ran | None, *, known: Collection[str], is_watched: bool
) -> tuple[Any, str | None]:
    """What became of a call, and its error: as it ran where it was watched, else from its name and its answer."""
    if reply is None:
        return "not_run", _ROLLED_BACK if ran is not None else None
    if ran is not None:  # a tool that returns "Error: …" did run
        return ("ok" if ran.error is None else "error"), ran.error
    error = error_in(result)
    if isinstance(name, str) and known and name not in known:
        return "unknown", error or "no such tool"
    if error is None and not is_watched:
        return "ok", None
    return "error", error or "it was not called"


def error_in(content: Any) -> str | None:
    """The error that an answer tells of: `{'error': …}`, "Error: …" or a traceback."""
    text = text_of(content)
    if not text.startswith(_FAILED):
        return None
    for read in (ast.literal_eval, json.loads):  # TRL writes what went wrong as a Python dict
        try:
            value = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            return str(value.get("error"))
    return text


# --- pairing ---------------------------------------------------------------------------------------------------------


def _right_after(messages: Sequence[Any], turn: int) -> list[int]:
    """Indices of the answering messages that directly follow a turn."""
    end = turn + 1
    while end < len(messages) and role_of(messages[end]) in ANSWERING:
        end += 1
    return list(range(turn + 1, end))


def _answers(
    calls: Mapping[Place, Call], messages: Sequence[Any], free: list[int], ran: Mapping[Place, Ran]
) -> dict[Place, int]:
    """Answers of one turn's calls; takes them out of `free`."""
    # Ids are sure, names are not: two calls may be of one tool. So each way goes over all calls before the next one.
    places = list(calls)
    if len(free) == len(calls):  # else some did not run, and which of the deferred ones is not known
        places.sort(key=lambda place: place in ran and ran[place].deferred)
    found: dict[Place, int] = {}
    for fits in (_by_id, _by_name, _in_order):
        for place in places:
            if free and place not in found:
                index = next((index for index in free if fits(calls[place], messages[index])), None)
                if index is not None:
                    found[place] = index
                    free.remove(index)
    return found


def _by_id(call: Call, message: Any) -> bool:
    return call.id is not None and field_of(message, "tool_call_id") == call.id


def _by_name(call: Call, message: Any) -> bool:
    return isinstance(call.name, str) and field_of(message, "name") == call.name and _in_order(call, message)


def _in_order(call: Call, message: Any) -> bool:
    """Whether the message may answer the call: it does not name another one."""
    named = field_of(message, "tool_call_id")
    return not named or call.id is None or named == call.id


def _later_answers(
    asked: Sequence[tuple[Place, Call]], messages: Sequence[Any], found: Mapping[Place, int]
) -> dict[Place, int]:
    """Calls whose answer, by its id, comes only after other messages."""
    waiting = [(place, call) for place, call in asked if place not in found and call.id is not None]
    if not waiting:
        return {}
    taken = set(found.values())
    later: dict[Place, int] = {}
    for place, call in waiting:
        for index in range(place[0] + 1, len(messages)):
            if index not in taken and role_of(messages[index]) in ANSWERING and _by_id(call, messages[index]):
                later[place] = index
                taken.add(index)
                break
    return later


def failure_text(status: str, reason: str) -> str:
    """Return what people read of a call that failed or was not run."""
    if not reason:
        return FAILURES[status]
    return reason if status == "error" else f"{FAILURES[status]}: {reason}"
