"""Convert a `Rollout`, or in a sink a `Trace`, into the conversation that is shown. Never raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from rollout_hookspecs import Rollout, ToolCall, Trace
from rollout_hookspecs._records import ToolStatus

from rollout_plugins.content.messages import calls_of, field_of, reasoning_of, role_of, text_of
from rollout_plugins.content.tool_calls import ANSWERING, pair_calls
from rollout_plugins.content.trace import facts_with_prefix

_STATUSES = get_args(ToolStatus)
_PLACE, _SCORE = ("split", "step", "group", "index"), ("reward", "advantage", "finish", "error")
_IN_TRACES = (*_PLACE, *_SCORE, "prompt_tokens", "completion_tokens")
_IN_ROLLOUTS = ("policy_step", "time", "rank", "attempt", "generation", "group_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message, with its tool calls and their results."""

    role: str = "unknown"
    """The role of the speaker."""
    content: Any = None
    """The message's content: text, blocks or None."""
    reasoning: str = ""
    """Reasoning from a separate key of the message."""
    calls: tuple[ToolCall, ...] = ()
    """The calls with their results; the messages with the results are not separate turns."""
    place: int | None = field(default=None, compare=False)
    """Index of the message in the rollout's completion; None for a prompt's message, and in a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The facts and turns to show. Values are not checked: the renderer does not trust them."""

    id: Any = ""
    split: Any = None
    step: Any = None
    group: Any = None
    index: Any = None
    reward: Any = None
    advantage: Any = None
    rewards: Mapping[str, Any] = field(default_factory=dict)
    finish: Any = None
    prompt_tokens: Any = None
    completion_tokens: Any = None
    policy_step: Any = None
    time: Any = None
    rank: Any = None
    attempt: Any = None
    generation: Any = None
    group_size: Any = None
    error: Any = None
    images: tuple[Any, ...] = ()
    marks: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()


def conversation(source: Rollout | Trace | Conversation) -> Conversation:
    """Return the conversation of a rollout or a trace; a conversation is returned itself."""
    if isinstance(source, Conversation):
        return source
    if isinstance(source, Trace):
        return from_trace(source)
    return from_rollout(source)


def from_rollout(rollout: Rollout) -> Conversation:
    """Return the conversation of a rollout, whose `tool_calls` pair calls with results."""
    prompt, completion = _items(rollout.prompt), _items(rollout.completion)
    completion_turns = _turns(completion, _recorded(completion, _items(rollout.tool_calls)), placed=True)
    return Conversation(
        id=rollout.id,
        **{name: getattr(rollout, name) for name in (*_IN_TRACES, *_IN_ROLLOUTS)},
        rewards=_mapping(rollout.rewards),
        images=tuple(_items(rollout.images)),
        marks=_mapping(rollout.marks),
        columns=_mapping(rollout.columns),
        extra=_mapping(rollout.extra),
        turns=(*_turns(prompt, _linked(prompt, {})), *completion_turns),
    )


def from_trace(trace: Trace) -> Conversation:
    """Return the conversation of a trace, which pairs calls by their ids and has their results in its spans."""
    messages, facts = _items(trace.messages), _mapping(trace.metadata)
    spans: dict[str, Mapping[str, Any]] = {}
    for span in _items(trace.spans):
        span_id = field_of(span, "id")
        if isinstance(span_id, str):
            spans.setdefault(span_id, span)
    return Conversation(
        id=trace.rollout_id,
        **dict[str, Any]({name: facts.get(name) for name in _IN_TRACES}),
        rewards=facts_with_prefix(facts, "reward/"),
        columns=facts_with_prefix(facts, "columns/"),
        extra=facts_with_prefix(facts, "extra/"),
        turns=tuple(_turns(messages, _linked(messages, spans))),
    )


def status_of(call: ToolCall) -> ToolStatus:
    """Return the call's status; an unexpected one counts as `ok`."""
    return call.status if isinstance(call.status, str) and call.status in _STATUSES else "ok"


def _turns(messages: Sequence[Any], calls: Mapping[int, list[ToolCall]], *, placed: bool = False) -> list[Turn]:
    replies = {call.reply for own in calls.values() for call in own if isinstance(call.reply, int)}
    turns = []
    for index, message in enumerate(messages):
        role = role_of(message)
        if index in replies and role in ANSWERING:
            continue
        content = field_of(message, "content") if isinstance(message, Mapping) else message
        reasoning = reasoning_of(message)
        own, place = tuple(calls.get(index, ())), index if placed else None
        turns.append(Turn(role=role, content=content, reasoning=reasoning, calls=own, place=place))
    unplaced = [call for index, own in calls.items() if index >= len(messages) for call in own]
    return [*turns, Turn(role="assistant", calls=tuple(unplaced))] if unplaced else turns


def _recorded(messages: Sequence[Any], records: Iterable[Any]) -> dict[int, list[ToolCall]]:
    """Return the calls by message, with their recorded results; calls that match no message come last."""
    recorded = [record for record in records if isinstance(record, ToolCall)]
    places = {(call.turn, call.position): call for call in recorded if _has_place(call, len(messages))}
    calls: dict[int, list[ToolCall]] = {}
    for turn, message in enumerate(messages):
        for position, call in enumerate(calls_of(message)):
            bare = ToolCall(name=call.name, arguments=call.arguments)
            calls.setdefault(turn, []).append(places.pop((turn, position), bare))
    for (turn, _), record in places.items():
        calls.setdefault(turn, []).append(record)
    unplaced = [call for call in recorded if not _has_place(call, len(messages))]
    return {**calls, len(messages): unplaced} if unplaced else calls


def _has_place(call: ToolCall, messages: int) -> bool:
    return isinstance(call.turn, int) and isinstance(call.position, int) and 0 <= call.turn < messages


def _linked(messages: Sequence[Any], spans: Mapping[str, Mapping[str, Any]]) -> dict[int, list[ToolCall]]:
    """Return the calls by message, joined with the messages that answer them."""
    calls: dict[int, list[ToolCall]] = {}
    for (turn, _), call, reply in pair_calls(messages):
        content = None if reply is None else field_of(messages[reply], "content")
        outcome = _outcome(spans.get(call.id or "", {}), content)
        calls.setdefault(turn, []).append(ToolCall(name=call.name, arguments=call.arguments, reply=reply, **outcome))
    return calls


def _outcome(span: Mapping[str, Any], content: Any) -> dict[str, Any]:
    status, milliseconds, error = field_of(span, "status"), field_of(span, "duration_ms"), field_of(span, "error")
    return {
        "result": field_of(span, "output") if content is None else content,
        "status": status if isinstance(status, str) and status in _STATUSES else "ok",
        "error": error if isinstance(error, str) else None,
        "seconds": milliseconds / 1000 if isinstance(milliseconds, (int, float)) else None,
    }


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _mapping(value: Any) -> dict[str, Any]:
    try:
        return {key: item for key, item in value.items() if isinstance(key, str)}
    except Exception:  # a value that raises when read is shown as missing
        return {}


def prompt_text(rollout: Rollout) -> str:
    """Return the complete prompt as text, one line per message."""
    return "\n".join(map(_text, rollout.prompt))


def question_text(rollout: Rollout) -> str:
    """Return the text of the last user message, or of the last message of a prompt without a user."""
    user_messages = [message for message in rollout.prompt if role_of(message) == "user"] or rollout.prompt
    return _text(user_messages[-1]) if user_messages else ""


def completion_text(rollout: Rollout) -> str:
    """Return the text that the model wrote, without tool results."""
    return "\n".join(_text(m) for m in rollout.completion if role_of(m) in {"assistant", "unknown"})


def _text(message: Any) -> str:
    return text_of(message.get("content") if isinstance(message, Mapping) else message)
