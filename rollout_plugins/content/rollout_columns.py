"""Store a batch of rollouts as columns, and create records from them only on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final, overload

from rollout_hookspecs import Rollout

from rollout_plugins.content.call_columns import CallColumns
from rollout_plugins.content.imaging import is_beyond_text
from rollout_plugins.content.message_columns import MessageColumns

_FIELDS: Final = tuple(field.name for field in fields(Rollout))
DEFAULTS: Final = {
    field.name: (lambda value=field.default: value) if field.default_factory is MISSING else field.default_factory
    for field in fields(Rollout)
    if field.name != "id"
}


class RolloutColumns(Sequence[Rollout]):
    """A batch of rollouts as columns.

    `rollouts["reward"]` has the rewards of all rollouts, and `rollouts[3]` creates the fourth rollout as a record.
    """

    def __init__(self, count: int, columns: Mapping[str, Sequence[Any]]) -> None:
        self._count = count
        self._columns = dict(columns)
        self._records: dict[int, Rollout] = {}

    @classmethod
    def from_rollouts(cls, rollouts: Any) -> RolloutColumns:
        """Return the columns of existing records."""
        if isinstance(rollouts, RolloutColumns):
            return rollouts
        columns = cls(len(rollouts), {name: [getattr(rollout, name) for rollout in rollouts] for name in _FIELDS})
        columns._records = dict(enumerate(rollouts))
        return columns

    def set_columns(self, **columns: Sequence[Any]) -> None:
        """Set fields of all rollouts. Records that were created before do not change."""
        self._columns |= columns
        self._records.clear()

    def take(self, order: Sequence[int]) -> RolloutColumns:
        """Return the rollouts with the indices `order`."""
        taken = {
            name: column.take(order) if hasattr(column, "take") else [column[i] for i in order]
            for name, column in self._columns.items()
        }
        return RolloutColumns(len(order), taken)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...
    @overload
    def __getitem__(self, index: str) -> Sequence[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, slice):
            return [self[i] for i in range(self._count)[index]]
        index = range(self._count)[index]
        if index not in self._records:
            values = {name: column[index] for name, column in self._columns.items()}
            self._records[index] = Rollout(**{"id": "", **values})
        return self._records[index]

    def _column(self, name: str) -> Sequence[Any]:
        if name not in self._columns:
            self._columns[name] = [DEFAULTS[name]() for _ in range(self._count)]
        return self._columns[name]

    def messages(self, name: str) -> MessageColumns:
        """Return the prompts or the completions as message columns."""
        conversations = self[name]
        return conversations if isinstance(conversations, MessageColumns) else MessageColumns(conversations, "")

    def calls(self) -> CallColumns:
        """Return the tool calls of all rollouts as columns."""
        calls = self["tool_calls"]
        return calls if isinstance(calls, CallColumns) else CallColumns(calls)

    def beyond_text(self) -> list[int]:
        """Return the indices of rollouts that may have more than text and numbers: an image, bytes, another object."""
        rows = {place for name in ("columns", "extra") for place in _beyond_text(self[name])}
        for name in ("prompt", "completion"):
            conversations = self[name]
            if not isinstance(conversations, MessageColumns):
                return list(range(self._count))
            irregular = {
                conversations.conversation_of(position)
                for position, message in conversations.irregular.items()
                if is_beyond_text((message,))
            }
            rows |= irregular | {
                conversations.conversation_of(conversations.message_of_call(position))
                for position in _beyond_text(conversations.arguments)
            }
        calls = self["tool_calls"]
        if isinstance(calls, CallColumns) and not calls.matches_messages:
            parts = zip(calls.columns["arguments"], calls.columns["result"], strict=True)
            rows |= {calls.rollout_of(position) for position, part in enumerate(parts) if is_beyond_text(part)}
        return sorted(rows)


def _beyond_text(values: Sequence[Any]) -> list[int]:
    """Return the indices of values that may contain more than text, after one check of all values."""
    return [index for index, value in enumerate(values) if is_beyond_text((value,))] if is_beyond_text(values) else []
