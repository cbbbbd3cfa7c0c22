"""Combine the folders that nodes without a shared disk wrote for one run into one folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rollout_plugins.errors import RunError
from rollout_plugins.reading.recorded_facts import Facts
from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import NOTE, nodes_of
from rollout_plugins.system.remote_runs import display_place


def cache_folder() -> Path:
    """Return the cache folder for combined folders."""
    chosen, caches = os.environ.get("ROLLOUTS_CACHE"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or f"{caches}/rollout-plugins").expanduser()


class _Node(NamedTuple):
    folder: Path
    run: str
    wrote: frozenset[tuple[int, int]]
    """The (attempt, rank) pairs whose files are in the folder."""


def combine_nodes(folders: Iterable[Path]) -> list[Path]:
    """Return the folders, with one combined folder in place of several that belong to the same run."""
    result = list(folders)
    runs: dict[str, list[Path]] = {}
    for folder in result if len(result) > 1 else ():
        with suppress(RunError):  # opening the run of a newer version reports it
            runs.setdefault(Facts(folder, {}).info.id, []).append(folder)
    for folders_of_run in runs.values():
        nodes = [_read_node(folder) for folder in folders_of_run] if len(folders_of_run) > 1 else []
        if nodes and not _find_duplicates(nodes):
            result = [*(folder for folder in result if folder not in folders_of_run), _combine(nodes)]
    return result


def combine_folders(folders: Iterable[Path]) -> Path:
    """Return the one run that nodes wrote to these folders; raise an error for several runs, or for duplicates."""
    nodes = [_read_node(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    runs = {node.run: node for node in reversed(nodes)}
    if len(runs) > 1:
        named = ", ".join(f"{run} in {display_place(node.folder)}" for run, node in reversed(runs.items()))
        raise RunError(f"these are different runs, not folders of one run's nodes: {named}; open one at a time")
    if twice := _find_duplicates(nodes):
        raise RunError(
            f"{' and '.join(map(display_place, twice))} hold the same attempt of the same rank of {nodes[0].run}, "
            "so they are not folders of different nodes; leave one out"
        )
    return _combine(nodes) if len(nodes) > 1 else nodes[0].folder


def absent(folder: Path, facts: Facts) -> list[str]:
    """Return a line for each thing that the folder lacks of its run: ranks, attempts, unselected rollouts."""
    stored = _parts(folder)
    wrote = stored | _recorded_writers(facts)
    attempts, ranks = {attempt for attempt, _ in wrote}, {rank for _, rank in wrote}
    of_ranks, of_attempts = facts.info.world_size, max(attempts, default=0)
    lines = [f"of its rollouts, those were chosen that fit {json.dumps(facts.chosen)}"] if facts.chosen else []
    if 0 < len(ranks) < of_ranks:
        few = f"rank {min(ranks)} alone" if len(ranks) == 1 else f"{len(ranks):,}"
        lines.append(f"of {of_ranks:,} ranks, {few} wrote here; of nodes without a shared disk, name all folders")
    if len(attempts) < of_attempts:
        gone = count(of_attempts - len(attempts), "attempt")
        lines.append(f"of {of_attempts:,} attempts, {gone} left nothing here; what they recorded may be elsewhere")
    return lines + _without_rollouts(facts, {attempt for attempt, _ in stored})


def _without_rollouts(facts: Facts, stored: Collection[int]) -> list[str]:
    """Return a line for each killed attempt whose rollouts are missing.

    Such an attempt trained for a while, because the next one resumed at a later step.
    """
    starts: dict[int, int] = {}
    for attempt in facts.attempts:
        starts[attempt["attempt"]] = max(attempt["resumed_from"] or 0, starts.get(attempt["attempt"], 0))
    ended = {attempt["attempt"] for attempt in facts.attempts if attempt["ended"]}
    return [
        f"attempt {number} trained to step {after:,} and left no rollouts here; they may be elsewhere, or lost"
        for (number, start), (_, after) in pairwise(sorted(starts.items()))
        if number not in ended and number not in stored and start < after
    ]


def _read_node(folder: Path) -> _Node:
    facts = Facts(folder, {})
    return _Node(folder, facts.info.id, frozenset(_parts(folder) | _recorded_writers(facts)))


def _parts(folder: Path) -> set[tuple[int, int]]:
    """Return the (attempt, rank) pairs that have rollouts here, in parts of their own or joined ones."""
    paths = [part.path for part in find_parts(folder)]
    notes = {node: read_joined_parts(node) for node in nodes_of(folder)}
    held = (name for path in paths for name in notes.get(path.parents[2], {}).get(file_name(path), ()))
    numbers = (Path(name).stem.split("-") for name in (*map(file_name, paths), *held))
    return {(int(attempt), int(rank)) for attempt, rank, _ in numbers}


def _recorded_writers(facts: Facts) -> set[tuple[int, int]]:
    return {(attempt["attempt"], attempt["rank"]) for attempt in facts.attempts}


def _find_duplicates(nodes: Sequence[_Node]) -> list[Path]:
    """Return two folders with files of the same attempt and rank, or an empty list."""
    for number, node in enumerate(nodes):
        for other in nodes[:number]:
            if node.wrote & other.wrote:
                return [other.folder, node.folder]
    return []


def _combine(nodes: Sequence[_Node]) -> Path:
    """Return the combined folder of some nodes, with the folder of rank 0 first."""
    by_rank = sorted(nodes, key=lambda node: sorted((rank, attempt) for attempt, rank in node.wrote))
    return _create_combined(nodes[0].run, [node.folder for node in by_rank])


def is_combined(folder: Path) -> bool:
    """Return True if a folder combines those of several nodes."""
    return (folder / NOTE).is_file()


def _create_combined(run: str, folders: Sequence[Path]) -> Path:
    """Create the folder that combines these folders of one run."""
    text = json.dumps([str(folder.resolve()) for folder in folders])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    combined = cache_folder().joinpath("nodes", digest, *folders[0].resolve().parts[-3:-1], run)
    if not is_combined(combined):
        combined.mkdir(parents=True, exist_ok=True)
        (combined / NOTE).write_text(text, encoding="utf-8")
    return combined
