"""Asking a run's files: around what is damaged, and again when a live run changed them meanwhile."""

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
from rollout_plugins.reading.damage import UnreadableError, fault, gist, wrong_columns
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
#: DuckDB takes threads and megabytes for each session, which runs that are only held open need not.
_OPEN_AT_ONCE = 8
_opened: deque[ref[Session]] = deque()
#: With what lets one thread open each: not in the session, for a run that nobody has asked yet can be pickled.
_sessions: WeakKeyDictionary[Session, RLock] = WeakKeyDictionary()


class Session:
    """The files of one run or several as they were when they were first asked."""

    def __init__(self, runs: Mapping[Path, dict[str, str]], memory: Memory | None = None) -> None:
        """`memory`: that of an earlier session of the only run."""
        self.damaged = {folder.resolve(): damaged for folder, damaged in runs.items()}
        """For each run's folder the files that could not be read, and why."""
        self._memory = {folder: memory or Memory(SmallFiles(), PartSums()) for folder in self.damaged}
        self._sources: list[Source] = []
        self._parts: list[Part] = []
        """Every part there was at any opening. Each keeps its number, by which an earlier answer knows it."""
        self._journals: dict[Path, pa.Table] = {}
        self._database: Database | None = None
        _sessions[self] = RLock()

    def ask(self, question: Callable[[Database], T]) -> T:
        """Return the answer; files that turn out to be unreadable are noted in `damaged` and left out."""
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
                    continue  # another process joined or removed files: ask those that are there by now
                look_again(self.damaged)
                uneven = not self._find_damage(whole=attempt > 0)
                if uneven and attempt > 1:
                    break
                attempt += 1
        raise RunError(f"{', '.join(map(display_place, self.damaged))} cannot be read: {reason}")

    def take(self, found: pa.Table, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.Table]]:
        """These columns of the places found, a few rows at a time, with each row's place among them."""
        rows = Rows(self._parts, self._in_memory, self.damaged)
        return rows.take(_integers(found["_file"], "i"), _integers(found["_row"], "q"), names)

    def note(self, what: str, error: Exception) -> None:
        """Something in the only run cannot be read."""
        (damaged,) = self.damaged.values()
        damaged[what] = gist(error)

    def _open(self, *, uneven: bool) -> Database:
        with _sessions.setdefault(self, RLock()):  # of several threads that ask at once, the others wait
            return self._database or self._opened_now(uneven=uneven)

    def _opened_now(self, *, uneven: bool) -> Database:
        sources = self._sources or [self._source(folder, damaged) for folder, damaged in self.damaged.items()]
        self._sources = sources
        known = {part.path for part in self._parts}
        self._parts += [part for source in sources for part in source.parts if part.path not in known]
        for source in sources:
            self._journals.update(source.tables)
        database = Database(sources, [part.path for part in self._parts], uneven=uneven)
        self._opened = sources
        self._database = database
        _close_the_first(self)
        return database

    def _in_memory(self, files: Sequence[Path]) -> dict[Path, pa.Table]:
        """Journals, and small files, which are read now if they are several."""
        found: dict[Path, pa.Table] = {}
        for source in self._opened:
            found.update(source.memory.small.whole(files, self._read))
        found.update((path, self._journals[path]) for path in files if path in self._journals)
        return found

    def _read(self, files: Sequence[Path]) -> pa.Table:
        """By the database of the moment: holding one would keep its threads after `close`."""
        return self._open(uneven=False).read(files)

    def close(self) -> None:
        """Let go of DuckDB until the next question, which is answered from the same files."""
        self._database = None

    def _source(self, folder: Path, damaged: dict[str, str]) -> Source:
        facts = Facts(folder, damaged)
        parts, tables = readable(folder, damaged)
        return Source(folder, parts, tables, self._memory[folder], facts.restarts, facts.info.reward_names, damaged)

    def verify(self) -> None:
        """Read all of every file, so that `damaged` names each that cannot be read."""
        if self._find_damage(whole=True):
            self._database, self._sources = None, []
        self.ask(lambda _: None)  # journals are read when the run is opened

    def _find_damage(self, *, whole: bool) -> bool:
        """Look for unreadable Parquet files; with `whole`, at every page of them. Says whether there were any."""
        before = sum(map(len, self.damaged.values()))
        for folder, damaged in self.damaged.items():
            for part in find_parts(folder):
                if not part.is_journal and part.name not in damaged and (why := fault(part.path, TYPES, whole=whole)):
                    damaged[part.name] = why
            for path in annotate.files(folder):
                if why := fault(path, {}, whole=True):
                    damaged[file_name(path)] = why
        return sum(map(len, self.damaged.values())) > before


def readable(folder: Path, damaged: dict[str, str]) -> tuple[list[Part], dict[Path, pa.Table]]:
    """The files of a run that are not known to be damaged, and what is in those of them that are journals."""
    parts, tables = [], {}
    for found in find_parts(folder):
        part = found.journal if found.name in damaged and found.journal.path.exists() else found
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
    """Whether a file that was on this machine is not there anymore."""
    return not is_remote_file(path) and not path.exists()


def look_again(folders: Iterable[Path]) -> None:
    """See what there is now of runs that are elsewhere."""
    for node in chain.from_iterable(map(nodes_of, folders)):
        if is_remote(node):
            remote_reader().refresh(node)


def _journal(part: Part, damaged: dict[str, str]) -> pa.Table | None:
    """What is in a journal, in the columns of today; None when that is nothing, because it is empty or damaged."""

    def breaks(byte: int, why: str) -> None:
        damaged[f"{part.name}, from byte {byte:,} on,"] = why

    try:
        table = read_journal(part.path, breaks) if part.path.stat().st_size else None
        why = "" if table is None else wrong_columns(table.schema, TYPES)
    except FileNotFoundError:
        raise UnreadableError(f"{part.name} was just turned into Parquet") from None
    except Exception as error:
        table, why = None, gist(error)
    if why:
        damaged[part.name] = why
    return None if table is None or why else with_columns(table, list(TYPES))


def _integers(column: pa.ChunkedArray, code: Literal["i", "q"]) -> Sequence[int]:
    """The numbers of a column without nulls, as they lie in memory: without a Python object for each."""
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
    for session in list(_sessions):
        _sessions[session] = RLock()
        if session._database is not None:  # noqa: SLF001 - one class in two parts
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session._database))  # noqa: SLF001
            session.close()


def _close_all() -> None:
    """DuckDB complains of what is open when Python ends."""
    for session in list(_sessions):
        session.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_leave_to_parent)
