"""Send rollouts as traces to Weave, next to a wandb run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rollout_hookspecs import Trace

from rollout_plugins.content.json_safe import to_json_safe
from rollout_plugins.errors import MissingExtraError
from rollout_plugins.sinks._common import reward_label
from rollout_plugins.sinks._traces import prompt_and_completion


class Weave:
    """Sends a Weave call for each rollout, with a child call for each tool call."""

    def __init__(self) -> None:
        try:
            self._weave: Any = import_module("weave")
        except ImportError:
            raise MissingExtraError("weave=True, but weave is not installed: pip install weave") from None
        self._client: Any = None

    def send(self, traces: Sequence[Trace], run: Any) -> None:
        if self._client is None:
            self._client = self._weave.init(f"{run.entity}/{run.project}" if run.entity else run.project)
        for trace in traces:
            prompt, completion = prompt_and_completion(trace)
            call = self._client.create_call(
                "rollout",
                {"messages": to_json_safe(prompt)},
                attributes=dict(trace.metadata),
                display_name=f"{reward_label(trace.metadata)} {trace.rollout_id}",
                use_stack=False,
            )
            for span in trace.spans:
                self._send_tool_call(call, span)
            self._client.finish_call(
                call, {"messages": to_json_safe(completion)}, _failure(trace.metadata.get("error"))
            )

    def _send_tool_call(self, parent: Any, span: Any) -> None:
        facts = {"status": span.get("status"), "duration_ms": span.get("duration_ms")}
        call = self._client.create_call(
            str(span.get("name")),
            {"input": to_json_safe(span.get("input"))},
            parent,
            attributes=facts,
            use_stack=False,
        )
        self._client.finish_call(call, to_json_safe(span.get("output")), _failure(span.get("error")))

    def flush(self) -> None:
        if self._client is not None:
            self._client.flush()


def _failure(error: Any) -> Exception | None:
    return RuntimeError(str(error)) if error else None
