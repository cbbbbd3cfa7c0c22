"""Convert a rollout to the trace that sinks receive: OpenAI-style messages, flat metadata, one span per tool call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from math import isfinite
from typing import Any

from rollout_hookspecs import Rollout, ToolCall, Trace, hookimpl

from rollout_plugins.content.json_safe import escape_surrogates, json_text, to_json_safe
from rollout_plugins.content.messages import Call, arguments_of, calls_of, compact, role_of
from rollout_plugins.content.tool_calls import Place, pair_calls


class DefaultTrace:
    """The built-in `format_trace`, used if no plugin returns a trace."""

    @hookimpl(trylast=True)
    def format_trace(self, rollout: Rollout) -> Trace:
        return default_trace(rollout)


class _WholeTrace(Trace):
    """A trace of a complete rollout, with a reference to it.

    `dataclasses.replace` returns a plain `Trace` without the reference, so that a plugin which removes something from
    a trace removes it from what is sent.
    """

    __slots__ = ("rollout",)


def rollout_of(trace: Trace) -> Rollout | None:
    """Return the rollout of a trace, without its tokens; None if a plugin created or changed the trace."""
    return getattr(trace, "rollout", None) if isinstance(trace, _WholeTrace) else None


def default_trace(rollout: Rollout) -> Trace:
    """Return the complete rollout as a trace that every sink can process."""
    prompt_ids = _Ids("prompt_", rollout.prompt)
    completion_ids = _Ids("", rollout.completion, rollout.tool_calls)
    messages = [_to_message(m, i, prompt_ids) for i, m in enumerate(rollout.prompt)]
    messages += [_to_message(m, i, completion_ids) for i, m in enumerate(rollout.completion)]
    trace = _WholeTrace(
        rollout_id=escape_surrogates(rollout.id),
        messages=tuple(messages),
        metadata=_metadata(rollout),
        spans=tuple(_span(call) for call in rollout.tool_calls),
    )
    is_large = (
        rollout.tokens is not None or rollout.rendered is not None
    )  # too much memory while a slow sink is behind
    object.__setattr__(trace, "rollout", replace(rollout, tokens=None, rendered=None) if is_large else rollout)
    return trace


class _Ids:
    """Ids that connect calls with the messages that answer them. Recorded pairs take precedence over derived ones."""

    def __init__(self, prefix: str, messages: Sequence[Any], recorded: Sequence[ToolCall] = ()) -> None:
        self._prefix = prefix
        places = {(call.turn, call.position): call.reply for call in recorded}
        free = [pair for pair in pair_calls(messages) if pair.place not in places]
        self._answered = {pair.reply: pair.place for pair in free}
        self._answered |= {reply: place for place, reply in places.items()}

    def of(self, place: Place) -> str:
        return f"call_{self._prefix}{place[0]}_{place[1]}"

    def answered_by(self, index: int) -> str | None:
        """Return the id of the call that message `index` answers; None if it answers none."""
        place = self._answered.get(index)
        return None if place is None else self.of(place)


def _to_message(message: Any, index: int, ids: _Ids) -> dict[str, Any]:
    """Return the message in OpenAI's format; a note in its place if it cannot be read."""
    try:
        if isinstance(message, Mapping):
            return _message(message, index, ids)
    except Exception as error:
        return {"role": "unknown", "content": f"[message {index}: unreadable, {type(error).__name__}]"}
    return {"role": "unknown", "content": to_json_safe(message, images=True)}


def _message(message: Mapping[Any, Any], index: int, ids: _Ids) -> dict[str, Any]:
    message_out = {
        "role": role_of(message),
        "content": None,
        **to_json_safe(
            {key: value for key, value in message.items() if key not in {"role", "tool_calls"}}, images=True
        ),
    }
    calls = calls_of(message)
    if calls:
        message_out["tool_calls"] = [_tool_call(ids.of((index, at)), call) for at, call in enumerate(calls)]
    answered = ids.answered_by(index)
    if answered is not None:
        message_out["tool_call_id"] = answered
    return message_out


def _tool_call(ident: str, call: Call) -> dict[str, Any]:
    arguments = escape_surrogates(call.arguments) if isinstance(call.arguments, str) else json_text(call.arguments)
    return {"id": ident, "type": "function", "function": {"name": _name(call.name), "arguments": arguments}}


def _name(name: Any) -> str:
    if isinstance(name, str):
        return escape_surrogates(name)
    return "malformed call" if name is None else compact(to_json_safe(name))


def _span(call: ToolCall) -> dict[str, Any]:
    milliseconds = call.seconds * 1000 if isinstance(call.seconds, (int, float)) else None
    return {
        "id": f"call_{call.turn}_{call.position}",
        "name": _name(call.name),
        "kind": "tool",
        "input": to_json_safe(arguments_of(call)),
        "output": to_json_safe(call.result, images=True),
        "status": call.status,
        "error": to_json_safe(call.error),
        "duration_ms": round(milliseconds, 3) if milliseconds is not None and isfinite(milliseconds) else None,
    }


def _metadata(rollout: Rollout) -> dict[str, Any]:
    failed = [call for call in rollout.tool_calls if call.status in {"error", "unknown"}]
    errored = rollout.error is not None or rollout.finish == "error"
    values = {
        "id": rollout.id,
        "run": rollout.run_id,
        "attempt": rollout.attempt,
        "split": rollout.split,
        "step": rollout.step,
        "policy_step": rollout.policy_step,
        "staleness": _staleness(rollout),
        "generation": rollout.generation,
        "group": rollout.group,
        "group_size": rollout.group_size,
        "place": _place(rollout),
        "index": rollout.index,
        "rank": rollout.rank,
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        **{f"reward/{name}": value for name, value in rollout.rewards.items()},
        "prompt_tokens": rollout.prompt_tokens,
        "completion_tokens": rollout.completion_tokens,
        "prompt_messages": len(rollout.prompt),
        "tool_calls": len(rollout.tool_calls),
        "tool_errors": len(failed),
        "finish": rollout.finish,
        "status": "error" if errored else "ok",
        "error": rollout.error,
        "time": _time(rollout.time),
        **_flat("columns", rollout.columns),
        **_flat("extra", rollout.extra),
        **_flat("marks", rollout.marks),
    }
    tags = escape_surrogates(" ".join(_tags(rollout)))
    return {**to_json_safe(values), **({"tags": tags} if tags else {})}


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": to_fact(value) for name, value in values.items()}


def to_fact(value: Any) -> Any:
    """Return the value as metadata: a dict or a list becomes text."""
    json_value = to_json_safe(value)
    return json_text(json_value) if isinstance(json_value, (dict, list)) else json_value


def _tags(rollout: Rollout) -> Iterator[str]:
    """Yield tags that no other field contains: the tools that were called, and the status of the calls."""
    for name in dict.fromkeys(_name(call.name) for call in rollout.tool_calls):
        yield f"tool:{name}"
    for status in dict.fromkeys(call.status for call in rollout.tool_calls):
        yield f"result:{status}"


def _staleness(rollout: Rollout) -> int | None:
    """Return how many updates the training weights are ahead of those that generated the rollout.

    It is 0 for a trainer that waits for its rollouts.
    """
    if rollout.split != "train" or rollout.policy_step is None:
        return None
    return max(0, rollout.step - 1 - rollout.policy_step)


def _place(rollout: Rollout) -> int | None:
    """Return the rollout's position in its group; None if the groups of its batch are not contiguous."""
    # A custom loop may record groups in any order, and then the index does not tell the position.
    if rollout.group_size < 1 or rollout.index // rollout.group_size != rollout.group:
        return None
    return rollout.index % rollout.group_size


def _time(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds") if seconds else None
    except (OverflowError, OSError, ValueError):
        return None


def facts_with_prefix(facts: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose names begin with `prefix`, by the rest of the name."""
    return {key[len(prefix) :]: value for key, value in facts.items() if key.startswith(prefix)}
