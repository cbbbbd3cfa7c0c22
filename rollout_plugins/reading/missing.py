"""Find rollouts that were recorded but are in no file, and files that were deleted.

Counts are compared for each writer process separately. A killed process stored more rollouts than it recorded, so in a
total over the run, its surplus would hide rollouts that another process lost.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, get_args

from rollout_hookspecs import Split

from rollout_plugins.reading.relocated_parts import relocated_urls
from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.system.node_folders import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from rollout_plugins.reading.query import Database

_SPLITS = get_args(Split)
#: How many processes a message lists before it only counts the others.
_MOST_NAMED = 3
_FILE = re.compile(r"data/(?P<split>[^/]+)/(?P<attempt>\d+)-(?P<rank>\d+)-(?P<number>\d+)\.(parquet|arrows)")


class Writer(NamedTuple):
    """A process that recorded rollouts of one split."""

    attempt: int
    rank: int
    split: str


def missing_rollouts(folder: Path, attempts: Sequence[Mapping[str, Any]], database: Database) -> list[str]:
    """Return a line with the number of recorded rollouts that no readable file has, and who wrote them."""
    recorded = Counter(
        {
            Writer(attempt["attempt"], attempt["rank"], split): rollouts
            for attempt in attempts
            for split, rollouts in attempt.get("rollouts", {}).items()
            if split in _SPLITS  # an edited run file may name splits that cannot have files
        }
    )
    if _all_ended(folder, attempts) and database.count(superseded=True) >= recorded.total():
        return []
    missing = recorded - _count_stored(folder, database)
    if not missing:
        return []
    line = f"{missing.total():,} of {recorded.total():,} recorded rollouts are in no file that can be read"
    processes = list(dict.fromkeys((writer.attempt, writer.rank) for writer in sorted(missing)))
    return [line if len(attempts) == 1 else f"{line}, of {_processes(processes)}"]


def _processes(processes: Sequence[tuple[int, int]]) -> str:
    named = "; ".join(f"attempt {attempt}, rank {rank}" for attempt, rank in processes[:_MOST_NAMED])
    more = len(processes) - _MOST_NAMED
    return f"{named}; and {more:,} more" if more > 0 else named


def _all_ended(folder: Path, attempts: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if every process with files recorded its end, so that none stored more rollouts than it recorded."""
    ended = {(attempt["attempt"], attempt["rank"]) for attempt in attempts if attempt["ended"]}
    parts = [part.path for part in find_parts(folder)]
    holds = {path: _writers(path, names) for path, names in _joined_parts(folder, parts).items()}
    return all((writer.attempt, writer.rank) in ended for writers in holds.values() for writer in writers)


def _count_stored(folder: Path, database: Database) -> Counter[Writer]:
    """Count the stored rollouts of each process. Rows of a file that was joined from several name their process."""
    stored: Counter[Writer] = Counter()
    count_by_file = database.count_by_file()
    joined_parts = _joined_parts(folder, count_by_file)
    for path, rows in count_by_file.items():
        writers = _writers(path, joined_parts[path])
        for row, rollouts in rows.items():
            stored[next(iter(writers)) if len(writers) == 1 else Writer(*row)] += rollouts
    return stored


def _joined_parts(folder: Path, paths: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the names of the parts that were joined into each file; an empty list if it is not a joined file."""
    parts_by_file_and_node = {str(node): read_joined_parts(node) for node in nodes_of(folder)}
    return {path: parts_by_file_and_node.get(str(path.parents[2]), {}).get(file_name(path), []) for path in paths}


def _writers(path: Path, held: Sequence[str]) -> set[Writer]:
    """Return the processes that wrote a file, or wrote the parts that were joined into it."""
    matches = filter(None, map(_FILE.fullmatch, held or [file_name(path)]))
    return {Writer(int(match["attempt"]), int(match["rank"]), match["split"]) for match in matches}


def missing_files(folder: Path) -> Iterator[str]:
    """Yield a line for each missing file.

    A process numbers its files without gaps, so a missing number below a later one means a missing file.
    """
    for node in nodes_of(folder):
        parts_by_joined_file = read_joined_parts(node)
        names = [file_name(part.path) for part in find_parts(node)]
        present_names = {
            *names,
            *(name for path in names for name in parts_by_joined_file.get(path, ())),
            *relocated_urls(node),
        }
        # A mirror may have all the parts of a joined file instead of the joined file.
        present_names |= {
            name
            for name, part_names in parts_by_joined_file.items()
            if present_names.issuperset(set(part_names) - parts_by_joined_file.keys())
        }
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        for match in filter(None, map(_FILE.fullmatch, present_names)):
            numbers[match[0].rpartition("-")[0]].add(int(match["number"]))
        for process, numbers_present in sorted(numbers.items()):
            for number in sorted(set(range(max(numbers_present))) - numbers_present):
                yield (
                    f"{process}-{number:06d} is missing with the rollouts in it, "
                    "while later files of its process are there"
                )
