"""A rollout as one row of a table whose columns never change their kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Image, Trace

from rollout_plugins.content.json_safe import json_text
from rollout_plugins.content.messages import role_of
from rollout_plugins.sinks._common import number, spoken
from rollout_plugins.sinks._traces import images_in, prompt_and_completion

logger = logging.getLogger("rollout_plugins")

_BEFORE = {
    "step": float,
    "split": str,
    **dict.fromkeys(("reward", "advantage"), float),
    **dict.fromkeys(("prompt", "response", "image"), str),
}
_AFTER = {
    **dict.fromkeys(("finish", "status", "error"), str),
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "tool_calls", "tool_errors", "images"), float),
    **dict.fromkeys(("generation", "group", "group_size", "place", "index", "rank", "attempt"), float),
    **dict.fromkeys(("policy_step", "staleness"), float),
    **dict.fromkeys(("id", "run", "time", "tags", "messages", "spans", "more"), str),
}
_UNSHOWN = {"prompt_messages"}


class TableColumns:
    """The columns of a run's tables, fixed by its first batch: numbers or text, nothing between.

    What a later batch brings that has no column, or is text in a column of numbers, goes to `more` as JSON.
    """

    def __init__(self, traces: Sequence[Trace], reward_names: Sequence[str], most_chars: int) -> None:
        names = [f"reward/{name}" for name in reward_names]
        names += [name for trace in traces for name in trace.metadata]
        fixed = {**_BEFORE, **_AFTER}
        found = {name: _kind(name, traces) for name in dict.fromkeys(names) if name not in fixed}
        self.kinds: dict[str, type] = {
            **_BEFORE,
            **{name: kind for name, kind in found.items() if name not in _UNSHOWN},
            **_AFTER,
        }
        self._most = most_chars
        self._strange: set[str] = set()

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    def row(self, trace: Trace, picture: Callable[[Sequence[Image]], Any]) -> list[Any]:
        prompt, completion = prompt_and_completion(trace)
        pictures = list({image.hash: image for image in images_in(trace.messages)}.values())
        facts = {
            **trace.metadata,
            "prompt": _said(prompt),
            "response": _said(completion),
            "messages": json_text(list(trace.messages)),
            "spans": json_text(list(trace.spans)),
            "images": len(pictures),
        }
        more = {name: value for name, value in facts.items() if not self._fits(name, value)}
        self._warn(more)
        facts["more"] = json_text(more) if more else None
        cells = {name: self._cell(kind, facts.get(name)) for name, kind in self.kinds.items()}
        return list({**cells, "image": picture(pictures)}.values())

    def _fits(self, name: str, value: Any) -> bool:
        kind = self.kinds.get(name)
        if kind is None:
            return name in _UNSHOWN
        return kind is str or value is None or number(value) is not None

    def _cell(self, kind: type, value: Any) -> Any:
        if kind is float:
            return value if type(value) is int else number(value)
        if value is None:
            return None
        return shortened(value if isinstance(value, str) else json_text(value), self._most)

    def _warn(self, more: Mapping[str, Any]) -> None:
        new = sorted(set(more) - self._strange)
        if new:
            self._strange.update(new)
            logger.warning("the table has no column for %s; such values are in its column 'more'", ", ".join(new))


def _kind(name: str, traces: Sequence[Trace]) -> type:
    if name.startswith("reward/"):
        return float
    values = [trace.metadata[name] for trace in traces if trace.metadata.get(name) is not None]
    return float if values and all(number(value) is not None for value in values) else str


def shortened(text: str, most: int) -> str:
    """Head and tail of a text that is too long for a cell, with how much is missing between."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[… {len(text) - most:,} characters left out …]\n{text[len(text) - most // 2 :]}"


def _said(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(f"[{role_of(message)}] {spoken(message, '→ {}')}" for message in messages)
