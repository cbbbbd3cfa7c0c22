"""Cache the merged sums of a run's sealed parts, so that opening a run with many files is fast.

Whoever opens such a run writes the file `.sums` into its folder. It is valid while all parts that it covers are
unchanged, and it can be deleted at any time. In a read-only folder, there is no cache.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from rollout_plugins.store import sums
from rollout_plugins.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = ".sums"
Versions: TypeAlias = "Mapping[Path, tuple[int, int]]"
"""The size and modification time of each file."""
Spans: TypeAlias = "Mapping[Path, tuple[int, int]]"
"""The first and the last generation in each file, for files in which all rollouts have a generation."""


class CachedSums(NamedTuple):
    """The merged sums of several parts, packed."""

    of: Versions
    packed: tuple[bytes, ...]
    """Empty, or one packed merge."""
    generations: Spans

    def is_valid(self, files: Versions) -> bool:
        """Return True if every part that these sums cover is among `files`, unchanged."""
        return all(files.get(path) == version for path, version in self.of.items())


NO_CACHE = CachedSums({}, (), {})


def read_cache(folder: Path, files: Versions) -> CachedSums:
    """Return the cached sums of a folder, or nothing if a part has changed or the cache is damaged."""
    with suppress(OSError, ValueError):
        listing, _, packed = (folder / FILE).read_bytes().partition(b"\n")
        if sums.is_packed_for(packed, checksum(listing)):
            path_by_name = {_name(folder, path): path for path in files}
            versions_by_name = json.loads(listing)
            covered = {
                path_by_name[name]: version for name, version in versions_by_name.items() if name in path_by_name
            }
            versions = {path: (size, time) for path, (size, time, *_) in covered.items()}
            spans = {path: (span[0], span[1]) for path, (_, _, *span) in covered.items() if len(span) > 1}
            cached = CachedSums(versions, (packed,), spans)
            if len(versions) == len(versions_by_name) and cached.is_valid(files):
                return cached
    return NO_CACHE


def write_cache(folder: Path, files: Versions, merged: sums.Sums, spans: Spans) -> CachedSums:
    """Write the merged sums of some files to the cache, and return them."""
    version_by_name = {_name(folder, path): (*version, *spans.get(path, ())) for path, version in files.items()}
    listing = json.dumps(version_by_name).encode()
    packed = sums.pack_merged(merged, checksum(listing))
    with suppress(OSError):  # without a cache, opening is only slower
        replace_file(folder / FILE, lambda path: path.write_bytes(listing + b"\n" + packed), sync=False)
    return CachedSums(files, (packed,), spans)


def checksum(listing: bytes) -> int:
    """Return a checksum of the listing and of the format of packed sums."""
    return crc32(sums.KEY + listing)


def _name(folder: Path, path: Path) -> str:
    """Return the part's path relative to the run's folder, or its full path outside of it."""
    return str(path).removeprefix(f"{folder}{os.sep}")
