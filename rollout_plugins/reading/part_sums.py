"""The sums of a run's parts: out of their footers, or computed from their rows, over all cores. Each part once."""

from __future__ import annotations

import os
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import pyarrow.parquet as pq

from rollout_plugins.errors import RunError
from rollout_plugins.reading import small_files as small
from rollout_plugins.reading import sums_cache as gathered
from rollout_plugins.reading.damage import UnreadableError, gist, wrong_columns
from rollout_plugins.reading.merged_sums import generations_of
from rollout_plugins.store import sums
from rollout_plugins.store.parts import file_name
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.remote_runs import is_remote_file, open_run_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

T = TypeVar("T")
#: Requests at once, for what takes time there is waiting.
_ELSEWHERE = 16


class PartSums:
    """What is known of one run's parts. Files that are sealed do not change, so it outlives a `refresh()`."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], bytes]] = {}
        self._gathered = gathered.NOTHING

    def of(
        self,
        folder: Path,
        files: Sequence[Path],
        journals: Mapping[Path, pa.Table],
        gather: Callable[[sums.Sums], sums.Sums | None],
    ) -> sums.Sums:
        """The sums of a run's files, and of what its journals hold.

        `gather` puts the sums of many parts together; it returns None for those that must stay apart. Another thread
        may open the run, too, as it was before or is by then.
        """
        versions = {path: _version(path) for path in files}
        before = self._gathered
        if not (before.of and before.counts(versions)):
            before = self._gathered = gathered.kept(folder, versions)
        parts = [*before.packed, *self._others(versions, before)]
        if len(parts) > small.MANY and (together := gather(found := sums.joined(parts))) is not None:
            spans = _generations(found, versions, before)
            now = self._gathered = gathered.keep(folder, versions, together, spans)
            parts, self._known = [*now.packed], {}
        return sums.joined([*parts, *(sums.packed(sums.lines(table)) for table in journals.values())])

    def lacks(self, path: Path, generations: Sequence[int]) -> bool:
        """Whether a file is known to have none of these generations, which are in order."""
        if (span := self._gathered.generations.get(path)) is None:
            return False
        place = bisect_left(generations, span[0])
        return place == len(generations) or generations[place] > span[1]

    def _others(self, versions: gathered.Versions, before: gathered.Gathered) -> list[bytes]:
        """The sums of the files that are not among those that were gathered before."""
        others = {path: version for path, version in versions.items() if path not in before.of}
        known = {path: told for path, told in self._known.items() if others.get(path) == told[0]}
        new = [path for path in others if path not in known]
        found = zip(new, _all_found(new), strict=True)
        self._known = known = {**known, **{path: (others[path], value) for path, value in found}}
        return [known[path][1] for path in others]


def _generations(
    found: sums.Sums, versions: gathered.Versions, before: gathered.Gathered
) -> Mapping[Path, tuple[int, int]]:
    """The first and the last generation in each file, of those that were gathered before as it was noted then."""
    new = [path for path in versions if path not in before.of]
    spans = generations_of(found)
    numbered = enumerate(new, len(before.packed))
    return {**before.generations, **{path: spans[n] for n, path in numbered if n in spans}}


def apart(files: Sequence[Path], journals: Mapping[Path, pa.Table]) -> sums.Sums:
    """The same from the rows alone, with every group by itself."""
    made = _on_all_cores(_computed_apart, files)
    return sums.joined([*made, *(sums.packed(sums.lines(table), whole=False) for table in journals.values())])


def _all_found(files: Sequence[Path]) -> list[bytes]:
    """Out of the footers, or computed from the rows of those that have none.

    Looking into a footer is a few calls of Python, for which threads take turns: of those, one more is in the way.
    """
    found = dict(zip(files, _on_all_cores(_found, files, but=1), strict=True))
    without = [path for path, value in found.items() if value is None]
    found.update(zip(without, _on_all_cores(_computed, without), strict=True))
    return [value for value in found.values() if value is not None]


def _on_all_cores(function: Callable[[Path], T], files: Sequence[Path], *, but: int = 0) -> list[T]:
    away = any(map(is_remote_file, files))
    threads = _ELSEWHERE if away else max(min(os.cpu_count() or 1, 4) - but, 1)
    size = -(-len(files) // (_ELSEWHERE * threads)) or 1  # handing over thousands one by one takes as long as they do
    some = [files[start : start + size] for start in range(0, len(files), size)]
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(lambda files: [function(path) for path in files], some)))


def _version(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError as error:
        raise UnreadableError(f"{file_name(path)}: {gist(error)}") from error
    return about.st_size, about.st_mtime_ns


def _found(path: Path) -> bytes | None:
    """Kept in the footer."""
    return _careful(path, lambda: sums.kept(path))


def _computed(path: Path) -> bytes:
    return _careful(path, lambda: sums.packed(_lines(path)))


def _computed_apart(path: Path) -> bytes:
    return _careful(path, lambda: sums.packed(_lines(path), whole=False))


def _careful(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (RunError, UnreadableError):
        raise
    except Exception as error:
        raise UnreadableError(f"{file_name(path)}: {gist(error)}") from error


def _lines(path: Path) -> pa.Table:
    with pq.ParquetFile(open_run_file(path)) as file:
        if why := wrong_columns(file.schema_arrow, TYPES):
            raise UnreadableError(f"{file_name(path)}: {why}")
        return sums.lines(file.read(columns=sums.columns(file.schema_arrow.names), use_threads=False))
