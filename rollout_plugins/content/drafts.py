"""Rollouts as columns, each made only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final, overload

from rollout_hookspecs import Rollout

_FIELDS: Final = tuple(field.name for field in fields(Rollout))
_DEFAULTS: Final = {
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
    def of(cls, rollouts: Sequence[Rollout]) -> Drafts:
        """The columns of records that there are already."""
        if isinstance(rollouts, Drafts):
            return rollouts
        drafts = cls(len(rollouts), {name: [getattr(one, name) for one in rollouts] for name in _FIELDS})
        drafts._made = dict(enumerate(rollouts))
        return drafts

    def put(self, **columns: Sequence[Any]) -> None:
        """Set fields of all; before anybody has asked for a rollout."""
        self._columns |= columns

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
            self._made[index] = Rollout(**{name: column[index] for name, column in self._columns.items()})
        return self._made[index]

    def _column(self, name: str) -> Sequence[Any]:
        if name not in self._columns:
            self._columns[name] = [_DEFAULTS[name]() for _ in range(self._count)]
        return self._columns[name]
