"""Rollouts as columns, each made only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final, overload

from rollout_hookspecs import Rollout

from rollout_plugins.content.call_columns import Outcomes
from rollout_plugins.content.imaging import is_beyond_text
from rollout_plugins.content.message_columns import Talk

_FIELDS: Final = tuple(field.name for field in fields(Rollout))
DEFAULTS: Final = {
    field.name: (lambda value=field.default: value) if field.default_factory is MISSING else field.default_factory
    for field in fields(Rollout)
    if field.name != "id"
}


class Drafts(Sequence[Rollout]):
    """A batch of rollouts: `drafts["reward"]` has the rewards of all, `drafts[3]` is the fourth as a record."""

    def __init__(self, count: int, columns: Mapping[str, Sequence[Any]]) -> None:
        self._count = count
        self._columns = dict(columns)
        self._made: dict[int, Rollout] = {}

    @classmethod
    def of(cls, rollouts: Any) -> Drafts:
        """The columns of records that there are already."""
        if isinstance(rollouts, Drafts):
            return rollouts
        drafts = cls(len(rollouts), {name: [getattr(one, name) for one in rollouts] for name in _FIELDS})
        drafts._made = dict(enumerate(rollouts))
        return drafts

    def put(self, **columns: Sequence[Any]) -> None:
        """Set fields of all. Records that were made before do not change."""
        self._columns |= columns
        self._made.clear()

    def take(self, order: Sequence[int]) -> Drafts:
        """Some of the rollouts, in an order."""
        taken = {
            name: column.take(order) if hasattr(column, "take") else [column[i] for i in order]
            for name, column in self._columns.items()
        }
        return Drafts(len(order), taken)

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
        if index not in self._made:
            values = {name: column[index] for name, column in self._columns.items()}
            self._made[index] = Rollout(**{"id": "", **values})
        return self._made[index]

    def _column(self, name: str) -> Sequence[Any]:
        if name not in self._columns:
            self._columns[name] = [DEFAULTS[name]() for _ in range(self._count)]
        return self._columns[name]

    def talk(self, name: str) -> Talk:
        """Prompts or completions, message by message."""
        found = self[name]
        return found if isinstance(found, Talk) else Talk(found, "")

    def outcomes(self) -> Outcomes:
        """The tool calls of all, one after the other."""
        calls = self["tool_calls"]
        return calls if isinstance(calls, Outcomes) else Outcomes(calls)

    def beyond_text(self) -> list[int]:
        """The places of those that may hold more than text and numbers: an image, bytes, an object of any kind."""
        found = {place for name in ("columns", "extra") for place in _beyond_text(self[name])}
        for name in ("prompt", "completion"):
            talk = self[name]
            if not isinstance(talk, Talk):
                return list(range(self._count))
            odd = {talk.place_of(at) for at, message in talk.odd.items() if is_beyond_text((message,))}
            found |= odd | {talk.place_of(talk.message_of(at)) for at in _beyond_text(talk.arguments)}
        calls = self["tool_calls"]
        if isinstance(calls, Outcomes) and not calls.is_as_said:
            parts = zip(calls.columns["arguments"], calls.columns["result"], strict=True)
            found |= {calls.place_of(at) for at, part in enumerate(parts) if is_beyond_text(part)}
        return sorted(found)


def _beyond_text(values: Sequence[Any]) -> list[int]:
    """The places of values that may hold more; one look at all of them where none does."""
    return [at for at, value in enumerate(values) if is_beyond_text((value,))] if is_beyond_text(values) else []
