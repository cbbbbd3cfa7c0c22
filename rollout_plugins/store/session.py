"""Asking a run's files: around what is damaged, and again when a live run changed them meanwhile."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakSet, ref

import pyarrow as pa

from rollout_plugins.errors import RunError
from rollout_plugins.store import annotate
from rollout_plugins.store.facts import Facts
from rollout_plugins.store.parts import Part, Rows, fault, find_parts
from rollout_plugins.store.query import Database, Source, UnreadableError
from rollout_plugins.store.write import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


T = TypeVar("T")
_TRIES = 4
#: DuckDB takes threads and megabytes for each session, which runs that are only held open need not.
_OPEN_AT_ONCE = 8
_opened: deque[ref[Session]] = deque()
_sessions: WeakSet[Session] = WeakSet()


class Session:
    """The files of one run or several as they were when they were first asked."""

    def __init__(self, folders: Sequence[Path], damaged: dict[str, str]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self.damaged = damaged
        self._sources: list[Source] = []
        self._database: Database | None = None
        _sessions.add(self)

    def ask(self, question: Callable[[Database], T]) -> T:
        """The answer; files that turn out to be unreadable are noted in `damaged` and left out."""
        for attempt in range(_TRIES):
            try:
                return question(self._open())
            except UnreadableError as error:
                self._database, self._sources = None, []
                reason = str(error)
                if not self._find_damage(whole=attempt > 0) and attempt > 1:
                    break
        raise RunError(f"{', '.join(map(str, self._folders))} cannot be read: {reason}")

    def take(self, found: pa.Table, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.Table]]:
        """These columns of the places found, a few rows at a time, with each row's place among them."""
        rows = Rows(self._parts, self._tables, self.damaged)
        return rows.take(_integers(found["_file"], "i"), _integers(found["_row"], "q"), names)

    def _open(self) -> Database:
        database = self._database
        if database is None:
            sources = self._sources or [self._source(folder, Facts(folder, self.damaged)) for folder in self._folders]
            self._parts = [part for source in sources for part in source.parts]
            self._tables = {path: table for source in sources for path, table in source.tables.items()}
            self._sources = sources
            self._database = database = Database(sources, self.damaged)
            _close_the_first(self)
        return database

    def close(self) -> None:
        """Let go of DuckDB until the next question, which is answered from the same files."""
        self._database = None

    def _source(self, folder: Path, facts: Facts) -> Source:
        parts, tables = [], {}
        for found in find_parts(folder):
            part = found.journal if found.path.name in self.damaged and found.journal.path.exists() else found
            if part.path.name in self.damaged:
                continue
            if part.is_journal:
                table = self._journal(part)
                if table is None:
                    continue
                tables[part.path] = table
            parts.append(part)
        return Source(folder, parts, tables, facts.restarts, facts.info.reward_names)

    def _journal(self, part: Part) -> pa.Table | None:
        """What is in a journal; None when that is nothing, because it is empty, was just sealed, or is damaged."""
        try:
            if part.path.stat().st_size == 0:
                return None
            wrong = fault(part)
            if not wrong:
                return read_journal(part.path)
        except FileNotFoundError:
            raise UnreadableError(f"{part.path.name} was just turned into Parquet") from None
        self.damaged[part.path.name] = wrong
        return None

    def _find_damage(self, *, whole: bool) -> bool:
        """Look for unreadable files; with `whole`, at every page of them. Says whether there were any."""
        before = len(self.damaged)
        for folder in self._folders:
            for part in find_parts(folder):
                if part.path.name not in self.damaged and (wrong := fault(part, whole=whole)):
                    self.damaged[part.path.name] = wrong
            for path in folder.glob("annotations/*/*.parquet"):
                if wrong := annotate.fault(path):
                    self.damaged[path.name] = wrong
        return len(self.damaged) > before


def _integers(column: pa.ChunkedArray, code: Literal["i", "q"]) -> Sequence[int]:
    """The numbers of a column without nulls, as they lie in memory: a million of them are no million objects."""
    whole = column.combine_chunks()
    array = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    view: memoryview[int] = memoryview(array.buffers()[1] or b"").cast("B").cast(code)
    return view[array.offset : array.offset + len(array)]


def _close_the_first(latest: Session) -> None:
    _opened.append(ref(latest))
    while len(_opened) > _OPEN_AT_ONCE:
        first = _opened.popleft()()
        if first is not None and first is not latest:
            first.close()


def _leave_to_parent() -> None:
    """In a forked child: the sessions' threads are not there, so DuckDB can neither be asked nor be freed."""
    for session in _sessions:
        if session._database is not None:  # noqa: SLF001 - one class in two parts
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session._database))  # noqa: SLF001
            session.close()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_leave_to_parent)
