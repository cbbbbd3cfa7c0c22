"""Query a run's files: leave out damaged ones, and retry if a live run changed them."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections import deque
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakKeyDictionary, ref

import pyarrow as pa

from rollout_plugins.errors import RunError
from rollout_plugins.reading import annotating as annotate
from rollout_plugins.reading.damage import UnreadableError, find_fault, first_line, wrong_columns
from rollout_plugins.reading.part_sums import PartSums
from rollout_plugins.reading.query import Database
from rollout_plugins.reading.recorded_facts import Facts
from rollout_plugins.reading.row_reader import Rows
from rollout_plugins.reading.small_files import SmallFiles
from rollout_plugins.reading.tables import Memory, Source
from rollout_plugins.store.any_version import with_columns
from rollout_plugins.store.parts import Part, file_name, find_parts
from rollout_plugins.store.schema import TYPES
from rollout_plugins.store.write import read_journal
from rollout_plugins.system.node_folders import nodes_of
from rollout_plugins.system.remote_runs import display_place, is_remote, is_remote_file, remote_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


T = TypeVar("T")
_TRIES = 4
#: Each open DuckDB has threads and takes megabytes, so only the last few used sessions keep theirs open.
_OPEN_AT_ONCE = 8
_opened: deque[ref[Session]] = deque()
#: The lock of each session. It is not an attribute of the session, so that a run can be pickled.
_sessions: WeakKeyDictionary[Session, RLock] = WeakKeyDictionary()


class Session:
    """The files of one run or several, as they were at the first query."""

    def __init__(self, runs: Mapping[Path, dict[str, str]], memory: Memory | None = None) -> None:
        """`memory`: the memory of an earlier session of the same, only run."""
        self.damaged = {folder.resolve(): damaged for folder, damaged in runs.items()}
        """The damaged files of each run's folder, with the reason."""
        self._memory = {folder: memory or Memory(SmallFiles(), PartSums()) for folder in self.damaged}
        self._sources: list[Source] = []
        self._parts: list[Part] = []
        """Every part that was there at any opening. A part keeps its index, to which earlier results refer."""
        self._journals: dict[Path, pa.Table] = {}
        self._database: Database | None = None
        _sessions[self] = RLock()

    def ask(self, question: Callable[[Database], T]) -> T:
        """Return the result of `question`.

        Files that turn out to be unreadable are left out and added to `damaged`.
        """
        attempt, uneven = 0, False
        files: list[Path] = []
        while attempt < _TRIES:
            try:
                return question(self._open(uneven=uneven))
            except UnreadableError as error:
                reason = str(error)
                before, files = files, [path for source in self._sources for path in source.parquet_files]
                self._database, self._sources = None, []
                if not any(folder.is_dir() for folder in self.damaged):
                    break
                if files != before and any(map(_is_gone, files)):
                    # Another process joined or removed files: list them anew.
                    continue
                refresh_remote(self.damaged)
                uneven = not self._find_damage(every_page=attempt > 0)
                if uneven and attempt > 1:
                    break
                attempt += 1
        raise RunError(f"{', '.join(map(display_place, self.damaged))} cannot be read: {reason}")

    def take(self, places: pa.Table, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Yield columns of the rollouts at these places, a few rows at a time, with their positions in `found`."""
        rows = Rows(self._parts, self._in_memory, self.damaged)
        return rows.take(_integers(places["_file"], "i"), _integers(places["_row"], "q"), names)

    def note(self, what: str, error: Exception) -> None:
        """Add something that cannot be read to the damaged files of the only run."""
        (damaged,) = self.damaged.values()
        damaged[what] = first_line(error)

    def _open(self, *, uneven: bool) -> Database:
        with _sessions.setdefault(self, RLock()):  # only one thread opens the database
            return self._database or self._open_database(uneven=uneven)

    def _open_database(self, *, uneven: bool) -> Database:
        sources = self._sources or [self._source(folder, damaged) for folder, damaged in self.damaged.items()]
        self._sources = sources
        listed_paths = {part.path for part in self._parts}
        self._parts += [part for source in sources for part in source.parts if part.path not in listed_paths]
        for source in sources:
            self._journals.update(source.tables)
        database = Database(sources, [part.path for part in self._parts], uneven=uneven)
        self._opened = sources
        self._database = database
        _close_the_first(self)
        return database

    def _in_memory(self, files: Sequence[Path]) -> dict[Path, pa.Table]:
        """Return the tables of journals, and of small files, which are now read together if there are several."""
        tables: dict[Path, pa.Table] = {}
        for source in self._opened:
            tables.update(source.memory.small.complete_rollouts(files, self._read))
        tables.update((path, self._journals[path]) for path in files if path in self._journals)
        return tables

    def _read(self, files: Sequence[Path]) -> pa.Table:
        """Read files through the current database. A reference to it would keep its threads alive after `close`."""
        return self._open(uneven=False).read(files)

    def close(self) -> None:
        """Release DuckDB until the next query, which reads the same files."""
        self._database = None

    def _source(self, folder: Path, damaged: dict[str, str]) -> Source:
        facts = Facts(folder, damaged)
        parts, tables = readable(folder, damaged)
        return Source(folder, parts, tables, self._memory[folder], facts.restarts, facts.info.reward_names, damaged)

    def verify(self) -> None:
        """Read every file to its end, so that `damaged` is complete."""
        if self._find_damage(every_page=True):
            self._database, self._sources = None, []
        self.ask(lambda _: None)  # opening the run reads the journals

    def _find_damage(self, *, every_page: bool) -> bool:
        """Find damaged Parquet files, with `every_page` by reading every page; return True if any are new."""
        before = sum(map(len, self.damaged.values()))
        for folder, damaged in self.damaged.items():
            for part in find_parts(folder):
                if (
                    not part.is_journal
                    and part.name not in damaged
                    and (why := find_fault(part.path, TYPES, every_page=every_page))
                ):
                    damaged[part.name] = why
            for path in annotate.files(folder):
                if why := find_fault(path, {}, every_page=True):
                    damaged[file_name(path)] = why
        return sum(map(len, self.damaged.values())) > before


def readable(folder: Path, damaged: dict[str, str]) -> tuple[list[Part], dict[Path, pa.Table]]:
    """Return the parts of a run that are not known to be damaged, and the tables of its journals."""
    parts, tables = [], {}
    for listed in find_parts(folder):
        part = listed.journal if listed.name in damaged and listed.journal.path.exists() else listed
        if part.name in damaged:
            continue
        if part.is_journal:
            table = _journal(part, damaged)
            if table is None:
                continue
            tables[part.path] = table
        parts.append(part)
    return parts, tables


def _is_gone(path: Path) -> bool:
    """Return True if a local file was removed."""
    return not is_remote_file(path) and not path.exists()


def refresh_remote(folders: Iterable[Path]) -> None:
    """Refresh the file lists of remote runs."""
    for node in chain.from_iterable(map(nodes_of, folders)):
        if is_remote(node):
            remote_reader().refresh(node)


def _journal(part: Part, damaged: dict[str, str]) -> pa.Table | None:
    """Return a journal's rows in the current schema, or None if it is empty or damaged."""

    def breaks(byte: int, why: str) -> None:
        damaged[f"{part.name}, from byte {byte:,} on,"] = why

    try:
        table = read_journal(part.path, breaks) if part.path.stat().st_size else None
        why = "" if table is None else wrong_columns(table.schema, TYPES)
    except FileNotFoundError:
        raise UnreadableError(f"{part.name} was just turned into Parquet") from None
    except Exception as error:
        table, why = None, first_line(error)
    if why:
        damaged[part.name] = why
    return None if table is None or why else with_columns(table, list(TYPES))


def _integers(column: pa.ChunkedArray, code: Literal["i", "q"]) -> Sequence[int]:
    """Return a view of a column of integers without nulls, to avoid a Python object for each value."""
    combined = column.combine_chunks()
    array = combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined
    view: memoryview[int] = memoryview(array.buffers()[1] or b"").cast("B").cast(code)
    return view[array.offset : array.offset + len(array)]


def _close_the_first(latest: Session) -> None:
    _opened.append(ref(latest))
    while len(_opened) > _OPEN_AT_ONCE:
        first = _opened.popleft()()
        if first is not None and first is not latest:
            first.close()


def _abandon_in_child() -> None:
    """In a forked child, keep DuckDB alive but unused: its threads do not exist there, so it cannot even be freed."""
    for session in list(_sessions):
        _sessions[session] = RLock()
        if session._database is not None:  # noqa: SLF001 - one class in two parts
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session._database))  # noqa: SLF001
            session.close()


def _close_all() -> None:
    """Close all sessions before the interpreter exits, because DuckDB complains about open ones."""
    for session in list(_sessions):
        session.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_abandon_in_child)
