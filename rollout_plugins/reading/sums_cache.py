"""The sums of a run's sealed parts, put together: opening a run costs its generations then, however many files it has.

Whoever opens a run of many files keeps them in its folder, in `.sums`. That is a copy of what the parts say, which
counts while each of them is there as it was. Nothing is lost with it, and a folder that cannot be written to has none.
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
"""The size of each file, and when it was changed."""
Spans: TypeAlias = "Mapping[Path, tuple[int, int]]"
"""The first and the last generation in each file; without those of which that cannot be said."""


class Gathered(NamedTuple):
    """Sums of several parts, packed as those of one."""

    of: Versions
    packed: tuple[bytes, ...]
    """None or one."""
    generations: Spans

    def counts(self, files: Versions) -> bool:
        """Whether every part that it is of is there as it was."""
        return all(files.get(path) == version for path, version in self.of.items())


NOTHING = Gathered({}, (), {})


def kept(folder: Path, files: Versions) -> Gathered:
    """What the folder has for parts that are among these files; nothing when one of them is not, or it is damaged."""
    with suppress(OSError, ValueError):
        listing, _, packed = (folder / FILE).read_bytes().partition(b"\n")
        if sums.is_of(packed, checked(listing)):
            there = {_name(folder, path): path for path in files}
            told = json.loads(listing)
            known = {there[name]: noted for name, noted in told.items() if name in there}
            of = {path: (size, time) for path, (size, time, *_) in known.items()}
            spans = {path: (span[0], span[1]) for path, (_, _, *span) in known.items() if len(span) > 1}
            found = Gathered(of, (packed,), spans)
            if len(of) == len(told) and found.counts(files):
                return found
    return NOTHING


def keep(folder: Path, files: Versions, found: sums.Sums, spans: Spans) -> Gathered:
    """Write what these files say together."""
    noted = {_name(folder, path): (*version, *spans.get(path, ())) for path, version in files.items()}
    listing = json.dumps(noted).encode()
    packed = sums.as_one(found, checked(listing))
    with suppress(OSError):  # opening takes longer the next time
        replace_file(folder / FILE, lambda path: path.write_bytes(listing + b"\n" + packed), sync=False)
    return Gathered(files, (packed,), spans)


def checked(listing: bytes) -> int:
    """Return what ties sums to their listing, and to the layout in which they are packed."""
    return crc32(sums.KEY + listing)


def _name(folder: Path, path: Path) -> str:
    """What a part is called in the run's folder, wherever that is; of other folders its path."""
    return str(path).removeprefix(f"{folder}{os.sep}")
