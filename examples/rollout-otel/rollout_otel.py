"""Rollouts as OpenTelemetry spans, named by the GenAI semantic conventions."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from rollout_plugins import Run, Step, Trace, hookimpl

FACTS = (
    "run",
    "attempt",
    "split",
    "step",
    "policy_step",
    "generation",
    "group",
    "index",
    "rank",
    "reward",
    "advantage",
)


class Otel:
    """A sink for OpenTelemetry.

    exporter: where spans go; the tracer provider of the program unless told.
    content: whether the texts of messages and tool calls go along.
    """

    def __init__(self, exporter: SpanExporter | None = None, *, content: bool = True) -> None:
        self._content = content
        self._own: TracerProvider | None = None
        if exporter is not None:
            self._own = TracerProvider(resource=Resource.create({"service.name": "rollout-plugins"}))
            self._own.add_span_processor(BatchSpanProcessor(exporter))
        self._run = Run(id="")

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._run = run

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> None:
        tracer = (self._own or otel.get_tracer_provider()).get_tracer("rollout_otel")
        for trace in traces:
            self._send(tracer, trace, step)

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        if self._own is not None:
            self._own.force_flush()

    def _send(self, tracer: Tracer, trace: Trace, step: Step) -> None:
        end = _end(trace.metadata)
        start = end - sum(map(_nanoseconds, trace.spans))
        span = tracer.start_span(
            f"invoke_agent {self._run.model}".strip(),
            kind=SpanKind.INTERNAL,
            start_time=start,
            attributes=_clean(self._facts(trace, step)),
        )
        for name, value in trace.metadata.items():
            if name.startswith("reward/") and _is_number(value):
                result = {"gen_ai.evaluation.name": name[7:], "gen_ai.evaluation.score.value": float(value)}
                span.add_event("gen_ai.evaluation.result", _clean(result), timestamp=end)
        if trace.metadata.get("status") == "error":
            span.set_status(Status(StatusCode.ERROR, str(trace.metadata.get("error"))))
        self._send_tools(tracer, span, trace, start)
        span.end(end)

    def _facts(self, trace: Trace, step: Step) -> dict[str, Any]:
        facts = trace.metadata
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "rollout-plugins",
            "gen_ai.agent.name": self._run.model,
            "gen_ai.request.model": self._run.model,
            "gen_ai.conversation.id": trace.rollout_id,
            "gen_ai.response.finish_reasons": [str(facts.get("finish", "unknown"))],
            "gen_ai.usage.input_tokens": facts.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": facts.get("completion_tokens"),
            "error.type": "rollout" if facts.get("status") == "error" else None,
            "rollout.step": step.step,
            "rollout.split": step.split,
            **{f"rollout.{name}": facts[name] for name in FACTS if name in facts},
        }
        if self._content:
            said = _said_at(trace)
            finish = {"finish_reason": str(facts.get("finish", "unknown"))}
            attributes["gen_ai.input.messages"] = _json([_message(m) for m in trace.messages[:said]])
            attributes["gen_ai.output.messages"] = _json([_message(m) | finish for m in trace.messages[said:]])
            attributes["gen_ai.tool.definitions"] = _json(list(self._run.tools)) if self._run.tools else None
        return attributes

    def _send_tools(self, tracer: Tracer, parent: Span, trace: Trace, start: int) -> None:
        context = otel.set_span_in_context(parent)
        for call in trace.spans:
            end = start + _nanoseconds(call)
            span = tracer.start_span(
                f"execute_tool {call.get('name')}",
                context=context,
                kind=SpanKind.INTERNAL,
                start_time=start,
                attributes=_clean(self._tool_facts(call)),
            )
            if call.get("status") != "ok":
                span.set_status(Status(StatusCode.ERROR, str(call.get("error") or call.get("status"))))
            span.end(end)
            start = end

    def _tool_facts(self, call: Mapping[str, Any]) -> dict[str, Any]:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": str(call.get("name")),
            "gen_ai.tool.call.id": call.get("id"),
            "gen_ai.tool.type": "function",
            "error.type": None if call.get("status") == "ok" else str(call.get("status")),
        }
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = _json(call.get("input"))
            attributes["gen_ai.tool.call.result"] = _json(call.get("output"))
        return attributes


def _end(facts: Mapping[str, Any]) -> int:
    """When the generation ended, in nanoseconds."""
    try:
        return int(datetime.fromisoformat(facts["time"]).timestamp() * 1e9)
    except (KeyError, TypeError, ValueError, OverflowError):
        return time.time_ns()


def _nanoseconds(call: Mapping[str, Any]) -> int:
    taken = call.get("duration_ms")
    return int(taken * 1e6) if isinstance(taken, (int, float)) and _is_number(taken) and taken > 0 else 0


def _said_at(trace: Trace) -> int:
    """Index of the first message that is not the prompt's."""
    count = trace.metadata.get("prompt_messages")
    return count if isinstance(count, int) else 0


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": str(message.get("role")), "parts": list(_parts(message))}


def _parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if message.get("reasoning_content"):
        yield {"type": "reasoning", "content": message["reasoning_content"]}
    for block in content if isinstance(content, list) else [content]:
        if isinstance(block, Mapping):
            yield {"type": "text", "content": block["text"]} if "text" in block else dict(block)
        elif block not in (None, ""):
            yield {"type": "text", "content": block}
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        part = {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
        yield {"type": "tool_call", **part}


def _json(value: Any) -> str:
    return json.dumps(value, default=str)  # an image's record becomes [IMAGE]


def _clean(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What an exporter can send: no None, no odd numbers, and texts that can be encoded."""
    cleaned = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            cleaned[name] = value.encode("utf-8", "replace").decode()
        elif isinstance(value, (bool, list)) or _is_number(value):
            cleaned[name] = value
    return cleaned


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
