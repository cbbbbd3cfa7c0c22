"""Read the sums of a run's parts from their footers, or compute them on all cores. Each part is read once."""

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
from rollout_plugins.reading.damage import UnreadableError, first_line, wrong_columns
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
#: How many requests run at once: reading remote files is mostly waiting.
_ELSEWHERE = 16


class PartSums:
    """The sums of one run's parts. They remain valid after `refresh()`, because sealed files do not change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], bytes]] = {}
        self._gathered = gathered.NO_CACHE

    def of(
        self,
        folder: Path,
        files: Sequence[Path],
        journals: Mapping[Path, pa.Table],
        gather: Callable[[sums.Sums], sums.Sums | None],
    ) -> sums.Sums:
        """Return the sums of a run's files and of the rollouts in its journals.

        `gather` merges the sums of many parts, or returns None if they must stay separate. Several threads may call
        this, with different lists of files.
        """
        versions = {path: _version(path) for path in files}
        before = self._gathered
        if not (before.of and before.is_valid(versions)):
            before = self._gathered = gathered.read_cache(folder, versions)
        parts = [*before.packed, *self._others(versions, before)]
        if len(parts) > small.MANY and (merged := gather(unmerged := sums.unpack(parts))) is not None:
            spans = _generations(unmerged, versions, before)
            cached = self._gathered = gathered.write_cache(folder, versions, merged, spans)
            parts, self._known = [*cached.packed], {}
        return sums.unpack([*parts, *(sums.pack(sums.summands(table)) for table in journals.values())])

    def lacks(self, path: Path, generations: Sequence[int]) -> bool:
        """Return True if the file certainly has no rollouts of these generations, which are sorted."""
        if (span := self._gathered.generations.get(path)) is None:
            return False
        place = bisect_left(generations, span[0])
        return place == len(generations) or generations[place] > span[1]

    def _others(self, versions: gathered.Versions, before: gathered.CachedSums) -> list[bytes]:
        """Return the packed sums of the files that are not in `before`."""
        others = {path: version for path, version in versions.items() if path not in before.of}
        sums_by_path = {
            path: known_value for path, known_value in self._known.items() if others.get(path) == known_value[0]
        }
        new = [path for path in others if path not in sums_by_path]
        read = zip(new, _all_found(new), strict=True)
        self._known = sums_by_path = {**sums_by_path, **{path: (others[path], value) for path, value in read}}
        return [sums_by_path[path][1] for path in others]


def _generations(
    sums_of_parts: sums.Sums, versions: gathered.Versions, before: gathered.CachedSums
) -> Mapping[Path, tuple[int, int]]:
    """Return the first and the last generation of each file; for files in `before`, as recorded there."""
    new = [path for path in versions if path not in before.of]
    spans = generations_of(sums_of_parts)
    numbered = enumerate(new, len(before.packed))
    return {**before.generations, **{path: spans[n] for n, path in numbered if n in spans}}


def apart(files: Sequence[Path], journals: Mapping[Path, pa.Table]) -> sums.Sums:
    """Compute sums from the rows alone, with a row for every group."""
    packed_sums = _on_all_cores(_computed_apart, files)
    return sums.unpack(
        [*packed_sums, *(sums.pack(sums.summands(table), merge_groups=False) for table in journals.values())]
    )


def _all_found(files: Sequence[Path]) -> list[bytes]:
    """Return the packed sums of files, from their footers or computed from their rows.

    Reading a footer is mostly Python code, so more threads would only wait for the interpreter lock.
    """
    packed_by_path = dict(zip(files, _on_all_cores(_found, files, but=1), strict=True))
    without = [path for path, value in packed_by_path.items() if value is None]
    packed_by_path.update(zip(without, _on_all_cores(_computed, without), strict=True))
    return [value for value in packed_by_path.values() if value is not None]


def _on_all_cores(function: Callable[[Path], T], files: Sequence[Path], *, but: int = 0) -> list[T]:
    away = any(map(is_remote_file, files))
    threads = _ELSEWHERE if away else max(min(os.cpu_count() or 1, 4) - but, 1)
    # Submitting thousands of single files takes as long as reading them.
    size = -(-len(files) // (_ELSEWHERE * threads)) or 1
    some = [files[start : start + size] for start in range(0, len(files), size)]
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(lambda files: [function(path) for path in files], some)))


def _version(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError as error:
        raise UnreadableError(f"{file_name(path)}: {first_line(error)}") from error
    return about.st_size, about.st_mtime_ns


def _found(path: Path) -> bytes | None:
    """Return the packed sums that the file's footer has, or None."""
    return _careful(path, lambda: sums.read_packed(path))


def _computed(path: Path) -> bytes:
    return _careful(path, lambda: sums.pack(_lines(path)))


def _computed_apart(path: Path) -> bytes:
    return _careful(path, lambda: sums.pack(_lines(path), merge_groups=False))


def _careful(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (RunError, UnreadableError):
        raise
    except Exception as error:
        raise UnreadableError(f"{file_name(path)}: {first_line(error)}") from error


def _lines(path: Path) -> pa.Table:
    with pq.ParquetFile(open_run_file(path)) as file:
        if why := wrong_columns(file.schema_arrow, TYPES):
            raise UnreadableError(f"{file_name(path)}: {why}")
        return sums.summands(file.read(columns=sums.columns(file.schema_arrow.names), use_threads=False))
