"""What a question to a run found: where the rollouts are, to be read from anywhere in it, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.errors import RunError
from rollout_plugins.reading.filters import no_column
from rollout_plugins.store.any_version import integers
from rollout_plugins.store.arrow_rollouts import from_rows
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.labels import count

if TYPE_CHECKING:
    from rollout_hookspecs import Rollout

    from rollout_plugins.reading.filters import Filters
    from rollout_plugins.reading.query_session import Session

_COUNTS = ("turns", "calls", "failed_calls")
_RECORD = tuple(name for name in TYPES if name not in {*_COUNTS, "tokens"})
_OWN = ("_file", "_row", "id")
#: Rollouts that a prompt or a notebook shows of many.
_SHOWN = 5
#: Of a run with more rollouts than this, all places at once would take long and much memory.
LARGE = 1_000_000
#: Places that are looked up at first then. For more than this, DuckDB may put all in order.
FIRST = 5_000


@dataclass(frozen=True, slots=True)
class _Rest:
    """What was not looked up yet."""

    total: int
    look_up: Callable[[], pa.Table]
    """All places, the first ones too."""
    lock: Lock = field(default_factory=Lock)


class Matches:
    """Rollouts in order, none of them read yet. It stays what it was when a live run grows."""

    def __init__(self, session: Session, places: pa.Table, rest: _Rest | None = None) -> None:
        self._session = session
        self._known = places
        self._rest = rest

    @classmethod
    def of(cls, session: Session, filters: Filters, *, whole: bool) -> Matches:
        """The answer to a question. Of one that very many may answer only the first are looked up now."""

        def places(limit: int | None) -> pa.Table:
            return session.ask(lambda known: known.places(replace(filters, limit=limit), whole=whole))

        is_large = session.ask(lambda known: known.count(superseded=filters.superseded)) > LARGE
        if filters.limit is not None or filters.search or not is_large:
            return cls(session, places(filters.limit))
        first = places(FIRST)
        if first.num_rows < FIRST:
            return cls(session, first)
        return cls(session, first, _Rest(session.ask(lambda known: known.total(filters)), lambda: places(None)))

    @property
    def _places(self) -> pa.Table:
        """All of them."""
        if (rest := self._rest) is not None:
            with rest.lock:
                if self._rest is not None:
                    self._known, self._rest = rest.look_up(), None
        return self._known

    def __len__(self) -> int:
        return int(self._known.num_rows) if (rest := self._rest) is None else rest.total

    def page(self, start: int, count: int) -> Matches:
        """Those from `start` on, at most `count`."""
        known = self._known
        is_known = min(start + count, len(self)) <= known.num_rows
        return Matches(self._session, (known if is_known else self._places).slice(start, count))

    def at(self, places: Sequence[int]) -> Matches:
        """Those that stand in these places."""
        known = self._known if max(places, default=0) < self._known.num_rows else self._places
        return Matches(self._session, known.take(pa.array(places, pa.int64())))

    def position(self, rollout_id: str) -> int | None:
        """Where a rollout stands; None when it is not among them, or of very many not among the first."""
        place = int(pc.index(self._known["id"], rollout_id).as_py())
        return place if place >= 0 else None

    def among(self, others: Sequence[Matches]) -> Matches:
        """Those that are also among the others, in this order.

        The others may be from before a refresh, when the rollouts stood in other files, so their ids are compared.
        """
        own = self._places["id"]
        ids = pa.chunked_array([chunk for other in others for chunk in other._places["id"].chunks], own.type)  # noqa: SLF001 - of its own kind
        return Matches(self._session, self._places.filter(pc.is_in(own, ids)))

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any] | None]:
        """Some columns of each; None for one that cannot be read."""
        rows: list[dict[str, Any] | None] = [None] * len(self)
        for places, table in self.tables(columns):
            for place, row in zip(places.to_pylist(), table.to_pylist(), strict=True):
                rows[place] = row
        return rows

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Arrow tables of all or some columns, a few rows each, with the rows' places among those found."""
        known = self._session.ask(lambda known: known.columns)
        wanted = list(columns) if columns is not None else list(known)
        for name in wanted:
            if name not in known:
                raise RunError(no_column(name, known))
        said = {name: (known[name].producer, known[name].name) for name in wanted if known[name].producer}
        stored = [name for name in wanted if name not in said]
        for places, table, found in self._read(stored or ["id"]):
            more = {name: pc.struct_field(found[of], column) for name, (of, column) in said.items()}
            arrays = [more[name] if name in more else table[name] for name in wanted]
            yield places, pa.Table.from_arrays(arrays, names=wanted)

    def rollouts(self, *, tokens: bool = False) -> Iterator[Rollout]:
        """Whole rollouts, with what producers said of them in `extra`; with token ids and their like if asked."""
        return (rollout for _, rollout in self.numbered(tokens=tokens))

    def numbered(self, *, tokens: bool = False) -> Iterator[tuple[int, Rollout]]:
        """The same with the place of each; those that cannot be read are missing."""
        said = [name for name in self._known.column_names if name not in _OWN]
        for places, table, found in self._read((*_RECORD, "tokens") if tokens else _RECORD):
            values = {name: found[name].to_pylist() for name in said}
            for number, rollout in self._decode(table):
                extra = {
                    f"{name}.{column}": value
                    for name in said
                    for column, value in (values[name][number] or {}).items()
                    if value is not None
                }
                yield places[number].as_py(), replace(rollout, extra={**rollout.extra, **extra}) if extra else rollout

    def _read(self, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.Table, pa.Table]]:
        """Rows of these columns, a few at a time, with their places among those found, and what is known of them."""
        done = 0
        while done < len(self):
            known = self._known if done < self._known.num_rows else self._places
            for places, table in self._session.take(known.slice(done), names):
                yield (pc.add(places, integers([done])[0]) if done else places), table, known.slice(done).take(places)
            done = known.num_rows

    def _decode(self, table: pa.Table) -> Iterator[tuple[int, Rollout]]:
        """The rollouts in a table, with their row; one that does not decode is noted in `damaged`."""
        try:
            whole = list(from_rows(table.to_pylist()))
        except Exception:
            for number in range(table.num_rows):
                yield from self._decode_one(table.slice(number, 1), number)
        else:
            yield from enumerate(whole)

    def _decode_one(self, table: pa.Table, number: int) -> Iterator[tuple[int, Rollout]]:
        try:
            yield number, next(from_rows(table.to_pylist()))
        except Exception as error:
            self._session.note(f"rollout {table['id'][0]}", error)


class Rollouts(Iterator["Rollout"]):
    """The answer to a question: rollouts that are read once, a few at a time; `[0]` is the first of them."""

    def __init__(self, found: Matches, *, tokens: bool = False) -> None:
        self._found = found
        self._tokens = tokens
        self._left = found.rollouts(tokens=tokens)

    def __next__(self) -> Rollout:
        return next(self._left)

    def __getitem__(self, place: Any) -> Any:
        """Return one by its place, or a list for a slice. It is read by itself: what a loop has left stays."""
        try:
            places = range(len(self._found))[place]
        except IndexError:
            raise IndexError(f"there are {count(len(self._found), 'rollout')}, and none at {place}") from None
        if isinstance(places, range):
            return list(self._found.at(places).rollouts(tokens=self._tokens))
        for rollout in self._found.page(places, 1).rollouts(tokens=self._tokens):
            return rollout
        raise RunError(f"rollout {place} cannot be read; `damaged` of its run says why")

    def __repr__(self) -> str:
        lines = [repr(rollout) for rollout in self._found.page(0, _SHOWN).rollouts()]
        more = [f"… {len(self._found) - _SHOWN:,} more"] * (len(self._found) > _SHOWN)
        head = count(len(self._found), "rollout") + ", to be read once:" * bool(lines)
        return "\n  ".join([head, *lines, *more])

    def _repr_html_(self) -> str:
        from rollout_plugins.show.notebook import rollouts_html

        return rollouts_html(list(self._found.page(0, _SHOWN).rollouts()), len(self._found))
