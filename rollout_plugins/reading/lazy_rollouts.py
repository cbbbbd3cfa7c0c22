"""The rollouts that match a query: their order and places are known, and each is read from its file when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Rollout

from rollout_plugins.errors import RunError
from rollout_plugins.reading.filters import unknown_column
from rollout_plugins.store.any_version import integers
from rollout_plugins.store.arrow_rollouts import from_rows
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.labels import count

if TYPE_CHECKING:
    from rollout_plugins.reading.filters import Filters
    from rollout_plugins.reading.query_session import Session

_COUNTS = ("turns", "calls", "failed_calls")
_RECORD = tuple(name for name in TYPES if name not in {*_COUNTS, "tokens"})
_PLACE_COLUMNS = ("_file", "_row", "id")
#: How many rollouts a prompt or a notebook displays.
_DISPLAYED = 5
#: In a run with more rollouts than this, looking up the places of all of them is slow and takes much memory.
LARGE = 1_000_000
#: How many places are looked up at first in such a run. With a larger limit, DuckDB may sort all rollouts.
FIRST = 5_000


@dataclass(frozen=True, slots=True)
class _Remaining:
    """The matches of a large run whose places have not been looked up yet."""

    total: int
    look_up: Callable[[], pa.Table]
    """Look up all places, the first ones included."""
    lock: Lock = field(default_factory=Lock)


class Rollouts(Sequence[Rollout]):
    """Rollouts in order, read from disk a few at a time while you iterate; they stay the same when a run grows.

    `rollouts[3]` and `rollouts[:10]` read only those. A rollout that cannot be read is left out of an iteration.
    """

    def __init__(
        self, session: Session, places: pa.Table, remaining: _Remaining | None = None, *, tokens: bool = False
    ) -> None:
        self._session = session
        self._looked_up = places
        self._remaining = remaining
        self._tokens = tokens

    @classmethod
    def matching(cls, session: Session, filters: Filters, *, annotated: bool = True, tokens: bool = False) -> Rollouts:
        """Find the rollouts that match `filters`; with very many matches, look up only the first ones now."""

        def look_up(limit: int | None) -> pa.Table:
            return session.ask(
                lambda database: database.places(replace(filters, limit=limit), with_annotations=annotated)
            )

        is_large = session.ask(lambda database: database.count(superseded=filters.superseded)) > LARGE
        if filters.limit is not None or filters.search or not is_large:
            return cls(session, look_up(filters.limit), tokens=tokens)
        first = look_up(FIRST)
        if first.num_rows < FIRST:
            return cls(session, first, tokens=tokens)
        total = session.ask(lambda database: database.total(filters))
        return cls(session, first, _Remaining(total, lambda: look_up(None)), tokens=tokens)

    @property
    def _places(self) -> pa.Table:
        """The places of all matches."""
        if (remaining := self._remaining) is not None:
            with remaining.lock:
                if self._remaining is not None:
                    self._looked_up, self._remaining = remaining.look_up(), None
        return self._looked_up

    def __len__(self) -> int:
        return int(self._looked_up.num_rows) if (remaining := self._remaining) is None else remaining.total

    def page(self, start: int, count: int) -> Rollouts:
        """Return at most `count` of these rollouts, from position `start` on."""
        end = min(start + count, len(self))
        places = self._looked_up if end <= self._looked_up.num_rows else self._places
        return self._with(places.slice(start, count))

    def at(self, positions: Sequence[int]) -> Rollouts:
        """Return the rollouts at these positions."""
        places = self._looked_up if max(positions, default=0) < self._looked_up.num_rows else self._places
        return self._with(places.take(pa.array(positions, pa.int64())))

    def _with(self, places: pa.Table) -> Rollouts:
        return Rollouts(self._session, places, tokens=self._tokens)

    def position(self, rollout_id: str) -> int | None:
        """Return the position of a rollout, or None if it does not match or is not among the first of very many."""
        position = int(pc.index(self._looked_up["id"], rollout_id).as_py())
        return position if position >= 0 else None

    def among(self, others: Sequence[Rollouts]) -> Rollouts:
        """Return those that are also in one of `others`, in this order.

        Ids are compared, because a refresh may have moved rollouts to other files.
        """
        ids = self._places["id"]
        chunks = [chunk for other in others for chunk in other._places["id"].chunks]  # noqa: SLF001 - same class
        return self._with(self._places.filter(pc.is_in(ids, pa.chunked_array(chunks, ids.type))))

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return some columns of each rollout as a dict, or None for a rollout that cannot be read."""
        rows: list[dict[str, Any] | None] = [None] * len(self)
        for positions, table in self.tables(columns):
            for position, row in zip(positions.to_pylist(), table.to_pylist(), strict=True):
                rows[position] = row
        return rows

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Yield Arrow tables of a few rollouts each, together with the positions of their rows in this sequence."""
        known = self._session.ask(lambda database: database.columns)
        names = list(columns) if columns is not None else list(known)
        for name in names:
            if name not in known:
                raise RunError(unknown_column(name, known))
        annotated = {name: (known[name].producer, known[name].name) for name in names if known[name].producer}
        stored = [name for name in names if name not in annotated]
        for positions, table, places in self._read_columns(stored or ["id"]):
            values = {name: pc.struct_field(places[of], column) for name, (of, column) in annotated.items()}
            arrays = [values[name] if name in values else table[name] for name in names]
            yield positions, pa.Table.from_arrays(arrays, names=names)

    def __iter__(self) -> Iterator[Rollout]:
        return self.read()

    def read(self, *, tokens: bool | None = None) -> Iterator[Rollout]:
        """Read each rollout, with its annotations in `extra`; `tokens` overrides whether token ids are read."""
        return (rollout for _, rollout in self.numbered(tokens=tokens))

    def numbered(self, *, tokens: bool | None = None) -> Iterator[tuple[int, Rollout]]:
        """Read each rollout like `read`, together with its position; unreadable ones are left out."""
        producers = [name for name in self._looked_up.column_names if name not in _PLACE_COLUMNS]
        with_tokens = self._tokens if tokens is None else tokens
        for positions, table, places in self._read_columns((*_RECORD, "tokens") if with_tokens else _RECORD):
            values = {name: places[name].to_pylist() for name in producers}
            for row, rollout in self._decode(table):
                extra = {
                    f"{name}.{column}": value
                    for name in producers
                    for column, value in (values[name][row] or {}).items()
                    if value is not None
                }
                yield positions[row].as_py(), replace(rollout, extra={**rollout.extra, **extra}) if extra else rollout

    def _read_columns(self, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.Table, pa.Table]]:
        """Yield positions, the columns `names`, and the rows of the places table, for a few rollouts at a time."""
        done = 0
        while done < len(self):
            places = self._looked_up if done < self._looked_up.num_rows else self._places
            for positions, table in self._session.take(places.slice(done), names):
                shifted = pc.add(positions, integers([done])[0]) if done else positions
                yield shifted, table, places.slice(done).take(positions)
            done = places.num_rows

    def _decode(self, table: pa.Table) -> Iterator[tuple[int, Rollout]]:
        """Yield row number and rollout for each row of `table` that can be decoded; record the others as damaged."""
        try:
            decoded = list(from_rows(table.to_pylist()))
        except Exception:
            for row in range(table.num_rows):
                yield from self._decode_row(table.slice(row, 1), row)
        else:
            yield from enumerate(decoded)

    def _decode_row(self, table: pa.Table, row: int) -> Iterator[tuple[int, Rollout]]:
        try:
            yield row, next(from_rows(table.to_pylist()))
        except Exception as error:
            self._session.note(f"rollout {table['id'][0]}", error)

    def __getitem__(self, index: Any) -> Any:
        """Return the rollout at an index, or a list of rollouts for a slice."""
        try:
            positions = range(len(self))[index]
        except IndexError:
            raise IndexError(f"there are {count(len(self), 'rollout')}, and none at {index}") from None
        if isinstance(positions, range):
            return list(self.at(positions))
        for rollout in self.page(positions, 1):
            return rollout
        raise RunError(f"rollout {index} cannot be read; `run.health.damaged` has the reason")

    def __repr__(self) -> str:
        lines = [repr(rollout) for rollout in self.page(0, _DISPLAYED)]
        more = [f"… {len(self) - _DISPLAYED:,} more"] * (len(self) > _DISPLAYED)
        return "\n  ".join([count(len(self), "rollout") + ":" * bool(lines), *lines, *more])

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import rollouts_html

        return rollouts_html(list(self.page(0, _DISPLAYED)), len(self))
