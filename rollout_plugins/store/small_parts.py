"""Join the small parts that a process seals, while it records, so that a run has few files.

A mirror seals a journal every few minutes, and each becomes a part. Sixteen parts of about the same size, the newest
excluded, are joined into a larger one, which is joined with its like later. So a process leaves few files and writes
each rollout only a few times. This happens on the store's thread after a new journal began, and never at the end of
training. The newest part is excluded because a mirror has not copied it yet, and would then copy the joined part too.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from rollout_plugins.store.join_parts import join_parts, remove_joined
from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.store.parts import file_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How many parts of about the same size are joined.
AT_ONCE = 16
#: Two parts have about the same size if their sizes differ by fewer than four bits: a factor of sixteen.
_SIZE_BITS = 4
#: The most bytes that are joined at once, because recording waits for it.
MOST_BYTES = 64 * 2**20


def join_small_parts(folder: Path, split: str, stem: str, target: Path) -> bool:
    """Join parts of one process into `target` if enough of them are small, and return True if it was done."""
    parts = sorted((folder / "data" / split).glob(f"{stem}-*.parquet"))
    if len(parts) <= AT_ONCE:
        return False
    remove_joined(folder)  # by a process that was killed while it joined parts
    targets = read_joined_parts(folder)
    sealed = [path for path in parts if file_name(path) not in targets]
    selected = _select([path for path in parts if path not in sealed[-1:] and path.exists()])
    if selected:
        join_parts(folder, target, selected)
    return bool(selected)


def _select(parts: Sequence[Path]) -> list[Path]:
    """Return the oldest parts of about the same size, if there are enough."""
    by_size: dict[int, list[tuple[Path, int]]] = {}
    for path in parts:
        size = path.stat().st_size
        if size < MOST_BYTES:
            by_size.setdefault(size.bit_length() // _SIZE_BITS, []).append((path, size))
    for parts_of_size in by_size.values():
        if len(parts_of_size) >= AT_ONCE:
            sums = accumulate(size for _, size in parts_of_size)
            selected = [path for (path, _), total in zip(parts_of_size, sums, strict=True) if total <= MOST_BYTES]
            return selected if len(selected) > 1 else []
    return []
