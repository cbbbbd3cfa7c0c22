"""Rollouts as a transcript database that Inspect Scout opens: a folder of Parquet files, and nothing else in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_hookspecs import Image, Run, Scope, Step, Trace, hookimpl

from rollout_plugins.content.imaging import file_of
from rollout_plugins.content.json_safe import json_text
from rollout_plugins.content.messages import arguments_of, calls_of, reasoning_of, role_of, text_of
from rollout_plugins.content.trace import under
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks._common import (
    SCOPES,
    image_words,
    integer,
    meant_for,
    number,
    thumbnail,
)
from rollout_plugins.sinks._traces import images_in, shape_each
from rollout_plugins.sinks.scout.parts import Parts, column_of
from rollout_plugins.system.option_checks import check, flag, one_of, whole

# All of Scout's own columns, used or not: its viewer asks for some of them without looking whether they are there.
_TEXT = (
    "transcript_id", "source_type", "source_id", "source_uri", "date", "task_set", "task_id", "agent",
    "agent_args", "model", "model_options", "score", "score_explanation", "error", "limit", "messages", "events",
    "timelines", "events_data", "split", "finish", "status", "rewards", "columns", "extra", "marks", "tags",
)  # fmt: skip
_WHOLE = (
    "task_repeat", "message_count", "total_tokens", "step", "policy_step", "staleness", "generation", "group",
    "group_size", "place", "index", "rank", "attempt", "prompt_tokens", "completion_tokens", "tool_calls",
    "tool_errors",
)  # fmt: skip
_NUMBER = ("total_time", "reward", "advantage")
_YES = ("success", "trust_content")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ScoutSink:
    """A transcript for each rollout: `scout view -T <run folder>/scout`.

    ScoutSink()                          # <run folder>/scout
    ScoutSink("/data/transcripts")       # another folder; it must hold nothing but transcripts
    ScoutSink(image_side=1024)           # larger images inside the transcripts
    ScoutSink(trust_content=True)        # its viewer shows images, and renders what the model wrote
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        image_side: int = 512,
        trust_content: bool = False,
        scope: Scope = "global",
    ) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise SetupError(f"path={path!r}: use a folder that holds nothing but transcripts")
        check(
            "scout",
            one_of("scope", scope, SCOPES),
            whole("image_side", image_side, 1),
            flag("trust_content", trust_content),
        )
        self.scope = scope
        self._trusted = trust_content
        self._side = image_side
        self._path = Path(path).absolute() if path else None
        self._run = Run(id="rollouts")
        self._parts: Parts | None = None
        self._gone = 0

    @property
    def target(self) -> str:
        """Where the rollouts go, in words that stay the same for the same place."""
        return f"scout:{self._place().resolve()}"

    def received(self) -> set[str]:
        """Ids of the rollouts that are in the folder."""
        return set(column_of(self._place(), "transcript_id"))

    def gone(self) -> int:
        """How many transcripts of this run were in files that are no longer there."""
        gone, self._gone = self._gone, 0
        return gone + (self._parts.gone() if self._parts is not None else 0)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._run, self._parts, self._gone = run, None, 0

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = meant_for(self.scope, traces, step)
        if not traces:
            return []
        import pyarrow as pa

        self._parts = self._parts or Parts(self._place(), self._run.rank)
        self._parts.add(pa.Table.from_pylist(shape_each(traces, step, self._row), schema=_schema()))
        return [trace.rollout_id for trace in traces]

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.merge()
            self._gone = parts.gone()

    def _place(self) -> Path:
        return self._path or Path(self._run.dir or ".") / "scout"

    def _row(self, trace: Trace) -> dict[str, Any]:
        facts = trace.metadata
        errors = {span.get("id"): span.get("error") for span in trace.spans}
        counts = [integer(facts.get("prompt_tokens")), integer(facts.get("completion_tokens"))]
        scores = {"reward": facts.get("reward"), **under(facts, "reward/")}
        finish = facts.get("finish")
        return {
            **{name: _text(facts.get(name)) for name in _TEXT},
            **{name: integer(facts.get(name)) for name in _WHOLE},
            **{name: number(facts.get(name)) for name in _NUMBER},
            "transcript_id": trace.rollout_id,
            "source_type": "rollout_plugins",
            "source_id": self._run.id,
            "source_uri": Path(self._run.dir).resolve().as_uri() if self._run.dir else None,
            "date": _text(facts.get("time")),
            "task_set": _text(facts.get("split")),
            "task_id": f"{facts.get('generation')}.{facts.get('group')}",
            "task_repeat": integer(facts.get("place")),
            "agent": self._run.trainer or None,
            "model": self._run.model or None,
            "score": json_text(scores),
            "message_count": len(trace.messages),
            "total_tokens": sum(filter(None, counts)) if any(counts) else None,
            "limit": finish if finish in {"length", "tool_limit"} else None,
            "success": None,
            "trust_content": self._trusted,
            "rewards": json_text(under(facts, "reward/")),
            "columns": json_text(under(facts, "columns/")),
            "extra": json_text(under(facts, "extra/")),
            "marks": json_text(under(facts, "marks/")),
            "messages": json.dumps([self._message(message, errors) for message in trace.messages]),
        }

    def _message(self, message: Mapping[str, Any], errors: Mapping[Any, Any]) -> dict[str, Any]:
        role = role_of(message)
        shown: dict[str, Any] = {"role": _ROLES.get(role, "user"), "content": self._content(message)}
        if role not in _ROLES or role == "developer":
            shown["metadata"] = {"role": role}
        if shown["role"] == "assistant" and (calls := calls_of(message)):
            shown["tool_calls"] = [_tool_call(call, f"call_{place}") for place, call in enumerate(calls)]
        if shown["role"] == "tool":
            ident = message.get("tool_call_id")
            shown |= {"tool_call_id": _text(ident), "function": _text(message.get("name"))}
            if errors.get(ident):
                shown["error"] = {"type": "unknown", "message": _text(errors[ident])}
        return shown

    def _content(self, message: Mapping[str, Any]) -> Any:
        content, reasoning = message.get("content"), reasoning_of(message)
        blocks = content if isinstance(content, (list, tuple)) else [content]
        parts = [part for block in blocks for part in self._block(block)]
        if reasoning and role_of(message) == "assistant":
            parts.insert(0, {"type": "reasoning", "reasoning": reasoning})
        if all(part["type"] == "text" for part in parts):
            return "\n".join(part["text"] for part in parts)
        return parts

    def _block(self, block: Any) -> Iterator[dict[str, Any]]:
        images = list(images_in(block))
        for image in images:
            shown = self._data_url(image)
            yield {"type": "image", "image": shown} if shown else {"type": "text", "text": image_words(image)}
        if not images:
            yield {"type": "text", "text": text_of([block] if isinstance(block, Mapping) else block)}

    def _data_url(self, image: Image) -> str | None:
        file = file_of(image, self._run.dir)
        pixels = thumbnail(file, self._side) if file else None
        return f"data:image/jpeg;base64,{base64.b64encode(pixels).decode()}" if pixels else None


def _tool_call(call: Any, otherwise: str) -> dict[str, Any]:
    """A flat call; arguments that are not an object are kept as one, with a note."""
    arguments = arguments_of(call)
    shown = {"id": call.id or otherwise, "type": "function", "function": _text(call.name) or "malformed call"}
    if isinstance(arguments, dict):
        return {**shown, "arguments": arguments}
    return {**shown, "arguments": {"arguments": arguments}, "parse_error": "the arguments are not a JSON object"}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


def _schema() -> Any:
    import pyarrow as pa

    kinds = ((_TEXT, pa.large_string()), (_WHOLE, pa.int64()), (_NUMBER, pa.float64()), (_YES, pa.bool_()))
    return pa.schema([(name, kind) for names, kind in kinds for name in names])
