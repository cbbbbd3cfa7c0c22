"""Prepare traces for a sink: plain values, prompt and completion apart, each trace in the sink's own shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rollout_hookspecs import Image, Step, Trace

from rollout_plugins.content.json_safe import escape_surrogates, to_json_safe
from rollout_plugins.content.messages import role_of
from rollout_plugins.content.trace import to_fact

T = TypeVar("T")
logger = logging.getLogger("rollout_plugins")


def prompt_and_completion(trace: Trace) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Split a trace's messages into prompt and completion.

    Without the fact `prompt_messages`, the completion starts at the first answer of the assistant.
    """
    count = trace.metadata.get("prompt_messages")
    if not isinstance(count, int):
        roles = [role_of(message) for message in trace.messages]
        count = roles.index("assistant") if "assistant" in roles else len(roles)
    return list(trace.messages[:count]), list(trace.messages[count:])


def shape_each(traces: Iterable[Trace], step: Step, shape: Callable[[Trace], T]) -> list[T]:
    """Convert each trace with `shape`. A trace that fails is replaced by a note, and the others are unaffected."""
    return [_shape_or_note(trace, step, shape) for trace in traces]


def _shape_or_note(trace: Trace, step: Step, shape: Callable[[Trace], T]) -> T:
    try:
        return shape(_prepare(trace, step))
    except Exception as error:
        logger.warning("Rollout %s could not be shown: %r", getattr(trace, "rollout_id", "?"), error)
        note = f"this rollout could not be shown here ({type(error).__name__}); the store has it"
        facts = {"split": step.split, "step": step.step, "generation": step.generation, "status": "error"}
        rollout_id = str(to_json_safe(getattr(trace, "rollout_id", "unknown")))
        message = {"role": "unknown", "content": note}
        metadata = {"id": rollout_id, **facts, "error": note}
        return shape(Trace(rollout_id=rollout_id, messages=(message,), metadata=metadata))


def _prepare(trace: Trace, step: Step) -> Trace:
    """Return the trace with plain values, and with a note if it comes from only one of several ranks."""
    facts = {str(name): to_fact(value) for name, value in to_json_safe(trace.metadata or {}).items()}
    if step.world_size > 1 and not step.gathered:
        facts["ranks"] = f"only rank {step.rank} of {step.world_size}"
    return Trace(
        rollout_id=escape_surrogates(str(trace.rollout_id)),
        messages=tuple(_as_dict(to_json_safe(m, images=True), "content") for m in trace.messages or ()),
        metadata={"id": trace.rollout_id, "split": step.split, "step": step.step, **facts},
        spans=tuple(_as_dict(to_json_safe(s, images=True), "output") for s in trace.spans or ()),
    )


def _as_dict(value: Any, name: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else {name: value}


def images_in(value: Any) -> Iterator[Image]:
    """Yield the `Image` records in a message, or in any part of a message, in order."""
    if isinstance(value, Image):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from images_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from images_in(item)
