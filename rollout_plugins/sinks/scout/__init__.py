"""Write rollouts as a transcript database for Inspect Scout: a folder of Parquet files and nothing else."""

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
from rollout_plugins.content.trace import facts_with_prefix
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks._common import (
    SCOPES,
    as_integer,
    describe_image,
    number,
    thumbnail,
    traces_for_scope,
)
from rollout_plugins.sinks._traces import images_in, shape_each
from rollout_plugins.sinks.scout.transcript_files import TranscriptFiles, read_column
from rollout_plugins.system.option_checks import check, flag, integer, one_of

# All of Scout's own columns, used or not, because its viewer queries some of them without checking for them.
_TEXTS = (
    "transcript_id", "source_type", "source_id", "source_uri", "date", "task_set", "task_id", "agent",
    "agent_args", "model", "model_options", "score", "score_explanation", "error", "limit", "messages", "events",
    "timelines", "events_data", "split", "finish", "status", "rewards", "columns", "extra", "marks", "tags",
)  # fmt: skip
_INTEGERS = (
    "task_repeat", "message_count", "total_tokens", "step", "policy_step", "staleness", "generation", "group",
    "group_size", "place", "index", "rank", "attempt", "prompt_tokens", "completion_tokens", "tool_calls",
    "tool_errors",
)  # fmt: skip
_FLOATS = ("total_time", "reward", "advantage")
_BOOLEANS = ("success", "trust_content")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ScoutSink:
    """Writes a transcript for each rollout: view them with `scout view -T <run folder>/scout`.

    ScoutSink()                          # <run folder>/scout
    ScoutSink("/data/transcripts")       # another folder; it must contain nothing but transcripts
    ScoutSink(image_side=1024)           # larger images inside the transcripts
    ScoutSink(trust_content=True)        # Scout's viewer shows images and renders what the model wrote
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
            raise SetupError(f"path={path!r} is not a path: use a folder that contains nothing but transcripts")
        check(
            "scout",
            one_of("scope", scope, SCOPES),
            integer("image_side", image_side, 1),
            flag("trust_content", trust_content),
        )
        self.scope = scope
        self._trusted = trust_content
        self._side = image_side
        self._path = Path(path).absolute() if path else None
        self._run = Run(id="rollouts")
        self._files: TranscriptFiles | None = None
        self._lost = 0

    @property
    def target(self) -> str:
        """The destination of the rollouts, as a text that is always the same for the same destination."""
        return f"scout:{self._folder().resolve()}"

    def received(self) -> set[str]:
        """Return the ids of the rollouts in the folder."""
        return set(read_column(self._folder(), "transcript_id"))

    def gone(self) -> int:
        """Return how many transcripts of this run were in files that no longer exist, since the last call."""
        lost, self._lost = self._lost, 0
        return lost + (self._files.take_lost_rows() if self._files is not None else 0)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._run, self._files, self._lost = run, None, 0

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> list[str]:
        traces = traces_for_scope(self.scope, traces, step)
        if not traces:
            return []
        import pyarrow as pa

        self._files = self._files or TranscriptFiles(self._folder(), self._run.rank)
        self._files.add(pa.Table.from_pylist(shape_each(traces, step, self._row), schema=_schema()))
        return [trace.rollout_id for trace in traces]

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.merge()
            self._lost = files.take_lost_rows()

    def _folder(self) -> Path:
        return self._path or Path(self._run.dir or ".") / "scout"

    def _row(self, trace: Trace) -> dict[str, Any]:
        facts = trace.metadata
        errors = {span.get("id"): span.get("error") for span in trace.spans}
        counts = [as_integer(facts.get("prompt_tokens")), as_integer(facts.get("completion_tokens"))]
        scores = {"reward": facts.get("reward"), **facts_with_prefix(facts, "reward/")}
        finish = facts.get("finish")
        return {
            **{name: _as_text(facts.get(name)) for name in _TEXTS},
            **{name: as_integer(facts.get(name)) for name in _INTEGERS},
            **{name: number(facts.get(name)) for name in _FLOATS},
            "transcript_id": trace.rollout_id,
            "source_type": "rollout_plugins",
            "source_id": self._run.id,
            "source_uri": Path(self._run.dir).resolve().as_uri() if self._run.dir else None,
            "date": _as_text(facts.get("time")),
            "task_set": _as_text(facts.get("split")),
            "task_id": f"{facts.get('generation')}.{facts.get('group')}",
            "task_repeat": as_integer(facts.get("place")),
            "agent": self._run.trainer or None,
            "model": self._run.model or None,
            "score": json_text(scores),
            "message_count": len(trace.messages),
            "total_tokens": sum(filter(None, counts)) if any(counts) else None,
            "limit": finish if finish in {"length", "tool_limit"} else None,
            "success": None,
            "trust_content": self._trusted,
            "rewards": json_text(facts_with_prefix(facts, "reward/")),
            "columns": json_text(facts_with_prefix(facts, "columns/")),
            "extra": json_text(facts_with_prefix(facts, "extra/")),
            "marks": json_text(facts_with_prefix(facts, "marks/")),
            "messages": json.dumps([self._message(message, errors) for message in trace.messages]),
        }

    def _message(self, message: Mapping[str, Any], errors: Mapping[Any, Any]) -> dict[str, Any]:
        role = role_of(message)
        scout_message: dict[str, Any] = {"role": _ROLES.get(role, "user"), "content": self._content(message)}
        if role not in _ROLES or role == "developer":
            scout_message["metadata"] = {"role": role}
        if scout_message["role"] == "assistant" and (calls := calls_of(message)):
            scout_message["tool_calls"] = [_tool_call(call, f"call_{index}") for index, call in enumerate(calls)]
        if scout_message["role"] == "tool":
            call_id = message.get("tool_call_id")
            scout_message |= {"tool_call_id": _as_text(call_id), "function": _as_text(message.get("name"))}
            if errors.get(call_id):
                scout_message["error"] = {"type": "unknown", "message": _as_text(errors[call_id])}
        return scout_message

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
            url = self._data_url(image)
            yield {"type": "image", "image": url} if url else {"type": "text", "text": describe_image(image)}
        if not images:
            yield {"type": "text", "text": text_of([block] if isinstance(block, Mapping) else block)}

    def _data_url(self, image: Image) -> str | None:
        file = file_of(image, self._run.dir)
        jpeg = thumbnail(file, self._side) if file else None
        return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" if jpeg else None


def _tool_call(call: Any, default_id: str) -> dict[str, Any]:
    """Return a tool call in Scout's format. Arguments that are not an object are wrapped in one, with a note."""
    arguments = arguments_of(call)
    tool_call = {"id": call.id or default_id, "type": "function", "function": _as_text(call.name) or "malformed call"}
    if isinstance(arguments, dict):
        return {**tool_call, "arguments": arguments}
    return {**tool_call, "arguments": {"arguments": arguments}, "parse_error": "the arguments are not a JSON object"}


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


def _schema() -> Any:
    import pyarrow as pa

    types = ((_TEXTS, pa.large_string()), (_INTEGERS, pa.int64()), (_FLOATS, pa.float64()), (_BOOLEANS, pa.bool_()))
    return pa.schema([(name, arrow_type) for names, arrow_type in types for name in names])
