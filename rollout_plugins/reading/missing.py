"""Find rollouts that a run recorded and no file holds, and files that must have been there.

Both are compared by the process that wrote them, which a file's name tells. A process that was killed recorded fewer
rollouts than it stored, so over the whole run its rollouts would hide the loss of others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, get_args

from rollout_hookspecs import Split

from rollout_plugins.reading.relocated_parts import moved
from rollout_plugins.store.joined_parts import joined
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from rollout_plugins.reading.query import Database

_SPLITS = get_args(Split)
#: Processes that a line names before it gives the number of the others.
_MOST_NAMED = 3
_FILE = re.compile(r"data/(?P<split>[^/]+)/(?P<attempt>\d+)-(?P<rank>\d+)-(?P<number>\d+)\.(parquet|arrows)")


class Writer(NamedTuple):
    """A process that recorded rollouts of a split."""

    attempt: int
    rank: int
    split: str


def missing_rollouts(folder: Path, attempts: Sequence[Mapping[str, Any]], database: Database) -> list[str]:
    """Describe in a line how many recorded rollouts no readable file holds, and who recorded them."""
    recorded = Counter(
        {
            Writer(attempt["attempt"], attempt["rank"], split): rollouts
            for attempt in attempts
            for split, rollouts in attempt.get("rollouts", {}).items()
            if split in _SPLITS  # a run file that somebody edited may name others, which have no files
        }
    )
    if _cannot_hide_a_loss(folder, attempts) and database.count(superseded=True) >= recorded.total():
        return []
    missing = recorded - _stored(folder, database)
    if not missing:
        return []
    line = f"{missing.total():,} of {recorded.total():,} recorded rollouts are in no file that can be read"
    processes = list(dict.fromkeys((writer.attempt, writer.rank) for writer in sorted(missing)))
    return [line if len(attempts) == 1 else f"{line}, of {_processes(processes)}"]


def _processes(processes: Sequence[tuple[int, int]]) -> str:
    named = "; ".join(f"attempt {attempt}, rank {rank}" for attempt, rank in processes[:_MOST_NAMED])
    more = len(processes) - _MOST_NAMED
    return f"{named}; and {more:,} more" if more > 0 else named


def _cannot_hide_a_loss(folder: Path, attempts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether every process that left files also recorded its end, so that none stored more than it recorded."""
    ended = {(attempt["attempt"], attempt["rank"]) for attempt in attempts if attempt["ended"]}
    parts = [part.path for part in find_parts(folder)]
    holds = {path: _writers(path, held) for path, held in _held(folder, parts).items()}
    return all((writer.attempt, writer.rank) in ended for writers in holds.values() for writer in writers)


def _stored(folder: Path, database: Database) -> Counter[Writer]:
    """How many rollouts of each process there are; of rows in a file of several, the rows tell."""
    stored: Counter[Writer] = Counter()
    counted = database.count_by_file()
    held = _held(folder, counted)
    for path, rows in counted.items():
        writers = _writers(path, held[path])
        for row, rollouts in rows.items():
            stored[next(iter(writers)) if len(writers) == 1 else Writer(*row)] += rollouts
    return stored


def _held(folder: Path, paths: Iterable[Path]) -> dict[Path, list[str]]:
    """The names of the parts that were joined into each file; none of one that was not joined."""
    notes = {str(node): joined(node) for node in nodes_of(folder)}
    return {path: notes.get(str(path.parents[2]), {}).get(file_name(path), []) for path in paths}


def _writers(path: Path, held: Sequence[str]) -> set[Writer]:
    """The processes that wrote a file, or the parts that were joined into it."""
    matches = filter(None, map(_FILE.fullmatch, held or [file_name(path)]))
    return {Writer(int(match["attempt"]), int(match["rank"]), match["split"]) for match in matches}


def missing_files(folder: Path) -> Iterator[str]:
    """Name the files that are gone although later ones of the same process are there: it numbers them in order."""
    for node in nodes_of(folder):
        notes = joined(node)
        names = [file_name(part.path) for part in find_parts(node)]
        known = {*names, *(name for path in names for name in notes.get(path, ())), *moved(node)}
        # A mirror may have the parts of a joined one, and not that itself.
        known |= {name for name, held in notes.items() if known.issuperset(set(held) - notes.keys())}
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        for match in filter(None, map(_FILE.fullmatch, known)):
            numbers[match[0].rpartition("-")[0]].add(int(match["number"]))
        for process, present in sorted(numbers.items()):
            for number in sorted(set(range(max(present))) - present):
                yield (
                    f"{process}-{number:06d} is missing with the rollouts in it, "
                    "while later files of its process are there"
                )
