"""Print one rollout of each step on one line while the demo trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text
from rollout_hookspecs import Step, Trace, hookimpl

from rollout_plugins.content.messages import text_of
from rollout_plugins.show.text import one_line

STATUSES = {"ok": "green", "error": "red", "unknown": "yellow", "not_run": "bright_black"}


class Stream:
    """A sink that shows each step's most average rollout on one line, so that the lines show what the model learns."""

    name = "demo"

    def __init__(self, show: Callable[[Text], object]) -> None:
        self._show = show

    @hookimpl
    def export_traces(self, traces: Sequence[Trace], step: Step) -> None:
        rewards = [_reward(trace) for trace in traces]
        mean = sum(rewards) / len(rewards)
        self._show(line(min(traces, key=lambda trace: abs(_reward(trace) - mean)), step.step))


def line(trace: Trace, step: int) -> Text:
    """Return the question, the calls with their results, the answer and the reward on one line."""
    reward = _reward(trace)
    colour = "green" if reward > 0.9 else "red" if reward < 0.3 else "yellow"
    text = Text.assemble((f"step {step:<3}", "dim"), (f"{reward:5.2f}  ", colour))
    text.append(_last_text(trace, "user"), "bold")
    for span in trace.spans:
        text.append(f"  {_call(span)}", STATUSES.get(str(span.get("status"))))
    return text.append(f"  {_last_text(trace, 'assistant')}")


def _reward(trace: Trace) -> float:
    return float(trace.metadata.get("reward") or 0)


def _last_text(trace: Trace, role: str) -> str:
    """Return the text of the last message with this role."""
    texts = [text_of(message.get("content")) for message in trace.messages if message.get("role") == role]
    return one_line(texts[-1] if texts else "", 100)


def _call(span: Mapping[str, Any]) -> str:
    value = span.get("input")
    arguments = ", ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)
    outcome = f"→ {span.get('output')}" if span.get("status") == "ok" else "✗"
    return one_line(f"{span.get('name')}({arguments}) {outcome}", 60)
