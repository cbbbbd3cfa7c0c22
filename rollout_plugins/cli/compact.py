"""Implement `rollouts compact RUN`, which joins the many small files of a run into few large ones."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from rollout_plugins.cli.chosen import add_run, note_damage, opened
from rollout_plugins.cli.common import counted, say
from rollout_plugins.errors import RunError
from rollout_plugins.reading.damage import find_fault
from rollout_plugins.reading.multi_node import is_combined
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.store.join_parts import join_parts, remove_joined
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.store.schema import TYPES
from rollout_plugins.system.file_locks import lock, unlock
from rollout_plugins.system.labels import count
from rollout_plugins.system.remote_runs import is_remote

#: The target size of a joined file, in compressed bytes.
LARGE = 256 * 2**20


class _Part(NamedTuple):
    path: Path
    rows: int
    bytes: int
    first: int
    """The first generation in the part."""


def configure(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--unended", action="store_true", help="also what a process wrote that was killed; none may still be writing"
    )


def run(options: Namespace) -> int:
    stored = opened(options.run)
    if is_remote(stored.dir):
        raise RunError(f"{stored.place} is not on this machine; compact the run's folder before it is sent there")
    if is_combined(stored.dir):
        raise RunError(f"{stored.place} were written by several nodes; compact one folder after the other")
    with _alone(stored):
        return _compact(stored, unended=options.unended)


@contextmanager
def _alone(stored: StoredRun) -> Iterator[None]:
    """Raise an error if another process compacts the run, because both would use the same names."""
    file = (stored.dir / ".compacting").open("ab")
    try:
        if not lock(file, wait=False):
            raise RunError(f"another process compacts {stored.place}; wait until it is done")
        yield
    finally:
        unlock(file)


def _compact(stored: StoredRun, *, unended: bool) -> int:
    before = [part for part in find_parts(stored.dir) if not part.is_journal]
    damaged: dict[str, str] = {}
    groups = list(_groups(stored, unended=unended))
    targets = _names(groups)
    remove_joined(stored.dir)
    with counted("files") as progress, ThreadPoolExecutor(min(os.cpu_count() or 1, 2)) as pool:
        done = 0
        for joined_now in pool.map(partial(_join, stored.dir, damaged), targets, groups):
            done += joined_now
            progress("files", done, sum(map(len, groups)))
    stored.refresh()
    for name, why in damaged.items():
        stored.health.damaged[name] = why
    after = [part for part in find_parts(stored.dir) if not part.is_journal]
    say(_what_became(len(before), len(after), count(len(stored), "rollout")))
    return note_damage(stored)


def _what_became(before: int, after: int, rollouts: str) -> str:
    if before == after:
        return f"nothing to join: {rollouts} in {count(after, 'file')}"
    return f"{before:,} files are now {after:,}, with {rollouts}"


def _groups(stored: StoredRun, *, unended: bool) -> Iterator[list[_Part]]:
    """Yield groups of parts to join: parts of one split that were written at about the same time."""
    ended = {(each["attempt"], each["rank"]) for each in stored.attempts if each["ended"] or unended}
    if not ended:
        raise RunError(f"{stored.place} has not ended; if it was killed and nothing writes to it: --unended")
    for split in sorted((stored.dir / "data").glob("*")):
        found = [part.path for part in find_parts(stored.dir) if part.path.parent == split and not part.is_journal]
        parts = [part for path in found if _number(path)[:2] in ended and (part := _looked_at(path))]
        for group in _large(sorted(parts, key=lambda part: (part.first, part.path.name))):
            if len(group) > 1:
                yield group


def _number(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.stem.split("-")))


def _large(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    group: list[_Part] = []
    for part in parts:
        if group and sum(one.bytes for one in group) + part.bytes > LARGE:
            yield group
            group = []
        group.append(part)
    yield group


def _looked_at(path: Path) -> _Part | None:
    """Return a part, or None for a damaged file, which stays as it is."""
    try:
        about = pq.read_metadata(path)
        group = about.row_group(0)
        at = next(n for n in range(group.num_columns) if group.column(n).path_in_schema == "generation")
        return _Part(path, about.num_rows, path.stat().st_size, int(group.column(at).statistics.min))
    except Exception:  # opening the run reports it
        return None


def _join(folder: Path, damaged: dict[str, str], target: Path, group: Sequence[_Part]) -> int:
    """Join parts without those that turn out to be damaged, and return how many were joined."""
    try:
        return _joined(folder, target, group)
    except Exception:
        faults = {part.path: why for part in group if (why := find_fault(part.path, TYPES, every_page=True))}
        if not faults:
            raise
    damaged.update({file_name(path): why for path, why in faults.items()})
    rest = [part for part in group if part.path not in faults]
    return _joined(folder, target, rest) if len(rest) > 1 else 0


def _joined(folder: Path, target: Path, group: Sequence[_Part]) -> int:
    """Write one part with the rows of a group, remove the group, and return how many parts it had."""
    join_parts(folder, target, [part.path for part in group])
    return len(group)


def _names(groups: Sequence[Sequence[_Part]]) -> list[Path]:
    """Return a new name for each joined part: the next numbers of its first rank."""
    paths: list[Path] = []
    for group in groups:
        first = group[0].path
        stem = first.stem.rpartition("-")[0]
        taken = [path for path in (*first.parent.glob(f"{stem}-*.*"), *paths) if path.stem.startswith(f"{stem}-")]
        number = 1 + max(_number(path)[2] for path in taken if path.parent == first.parent)
        paths.append(first.with_name(f"{stem}-{number:06d}.parquet"))
    return paths
