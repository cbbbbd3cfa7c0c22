"""Turn stored messages into the JSON that chat templates and trainers take, one text for each message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa

from rollout_plugins.content.exact_json import decode
from rollout_plugins.content.json_safe import to_json_safe

_TAG = '"$'


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt or a completion: the role and the JSON text of each message."""

    roles: Sequence[str]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def cut(self, start: int, end: int | None = None) -> Conversation:
        """Return the messages from `start` to before `end`."""
        return Conversation(self.roles[start:end], self.texts[start:end])

    def __add__(self, other: Conversation) -> Conversation:
        return Conversation([*self.roles, *other.roles], [*self.texts, *other.texts])

    @property
    def messages(self) -> list[Any]:
        """The messages as Python values."""
        return [orjson.loads(text) for text in self.texts]

    @classmethod
    def of(cls, messages: Sequence[Any]) -> Conversation:
        """Return the conversation of messages that are Python values."""
        safe = [to_json_safe(message) for message in messages]
        roles = [str(message.get("role")) if isinstance(message, Mapping) else "" for message in safe]
        return cls(roles, [orjson.dumps(message).decode() for message in safe])


def read_conversations(column: pa.ChunkedArray) -> Iterator[Conversation]:
    """Yield the conversation of each row of a store's column `prompt` or `completion`."""
    for chunk in column.chunks:
        messages = chunk.flatten()
        roles = ["" if role is None else role for role in messages.field("role").to_pylist()]
        texts = _json_texts(messages)
        starts = chunk.offsets.to_pylist()
        first = starts[0]
        for start, end in pairwise(starts):
            yield Conversation(roles[start - first : end - first], texts[start - first : end - first])


def _json_texts(messages: pa.StructArray) -> list[str]:
    """Return the JSON text of each message of a store's struct column."""
    columns = [messages.field(name).to_pylist() for name in ("role", "content", "name", "reasoning", "rest")]
    calls = _calls(messages.field("tool_calls"))
    texts = []
    for place, (role, content, name, reasoning, rest) in enumerate(zip(*columns, strict=True)):
        message: Any = {}
        for key, value in (("role", role), ("content", content), ("name", name), ("reasoning_content", reasoning)):
            if value is not None:
                message[key] = value
        if place in calls:
            message["tool_calls"] = calls[place]
        if rest:
            message = _with_rest(message, rest)
        texts.append(orjson.dumps(message).decode())
    return texts


def _calls(column: pa.ListArray) -> dict[int, list[dict[str, Any]]]:
    """Return the tool calls of the messages that have some, by the place of the message."""
    calls = column.flatten().to_pylist()
    starts = column.offsets.to_pylist()
    return {
        place: [_call(call) for call in calls[start - starts[0] : end - starts[0]]]
        for place, (start, end) in enumerate(pairwise(starts))
        if end > start
    }


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    ident = {} if call["id"] is None else {"id": call["id"]}
    function = {"name": call["name"], "arguments": _json_value(call["arguments"])}
    return {**ident, "type": "function", "function": function}


def _json_value(text: str) -> Any:
    """Return the value of stored JSON for `orjson` to write: the text itself unless it holds tags of the store."""
    return to_json_safe(decode(text)) if _TAG in text else orjson.Fragment(text)


def _with_rest(message: dict[str, Any], rest: str) -> Any:
    """Return the message with what its typed columns do not hold exactly, without keys that hold None."""
    values = to_json_safe(decode(rest))
    if not isinstance(values, dict):
        return values
    merged = message | values
    return {key: value for key, value in merged.items() if value is not None or key == "content"}
