"""Turn a rollout into one row of a table whose columns never change their type."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_hookspecs import Image, Trace

from rollout_plugins.content.json_safe import json_text
from rollout_plugins.content.messages import role_of
from rollout_plugins.sinks._common import message_text, number
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
_HIDDEN = {"prompt_messages"}


class TableColumns:
    """The columns of a run's tables, each either numbers or text, fixed by the run's first batch.

    Values of a later batch without a column, or texts in a numeric column, go to the column `more` as JSON.
    """

    def __init__(self, traces: Sequence[Trace], reward_names: Sequence[str], max_chars: int) -> None:
        names = [f"reward/{name}" for name in reward_names]
        names += [name for trace in traces for name in trace.metadata]
        fixed = {**_BEFORE, **_AFTER}
        types = {name: _column_type(name, traces) for name in dict.fromkeys(names) if name not in fixed}
        self.kinds: dict[str, type] = {
            **_BEFORE,
            **{name: column_type for name, column_type in types.items() if name not in _HIDDEN},
            **_AFTER,
        }
        self._max_chars = max_chars
        self._reported: set[str] = set()

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    def row(self, trace: Trace, picture: Callable[[Sequence[Image]], Any]) -> list[Any]:
        prompt, completion = prompt_and_completion(trace)
        pictures = list({image.hash: image for image in images_in(trace.messages)}.values())
        facts = {
            **trace.metadata,
            "prompt": _conversation_text(prompt),
            "response": _conversation_text(completion),
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
            return name in _HIDDEN
        return kind is str or value is None or number(value) is not None

    def _cell(self, kind: type, value: Any) -> Any:
        if kind is float:
            return value if type(value) is int else number(value)
        if value is None:
            return None
        return shorten(value if isinstance(value, str) else json_text(value), self._max_chars)

    def _warn(self, more: Mapping[str, Any]) -> None:
        new = sorted(set(more) - self._reported)
        if new:
            self._reported.update(new)
            logger.warning("The table has no column for %s; their values are in its column 'more'", ", ".join(new))


def _column_type(name: str, traces: Sequence[Trace]) -> type:
    if name.startswith("reward/"):
        return float
    values = [trace.metadata[name] for trace in traces if trace.metadata.get(name) is not None]
    return float if values and all(number(value) is not None for value in values) else str


def shorten(text: str, most: int) -> str:
    """Return `text` with its middle left out if it has more than `most` characters, and say how many are missing."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[… {len(text) - most:,} characters left out …]\n{text[len(text) - most // 2 :]}"


def _conversation_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(f"[{role_of(message)}] {message_text(message, '→ {}')}" for message in messages)
