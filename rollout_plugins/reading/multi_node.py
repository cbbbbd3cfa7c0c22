"""Which folders hold one run: those of nodes that share no disk, copied side by side. One folder stands for them."""

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
from rollout_plugins.store.joined_parts import joined
from rollout_plugins.store.parts import file_name, find_parts
from rollout_plugins.system.labels import count
from rollout_plugins.system.node_folders import NOTE, nodes_of
from rollout_plugins.system.remote_runs import display_place


def root() -> Path:
    """Where the folders are that stand for others."""
    chosen, caches = os.environ.get("ROLLOUTS_CACHE"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or f"{caches}/rollout-plugins").expanduser()


class _Node(NamedTuple):
    folder: Path
    run: str
    wrote: frozenset[tuple[int, int]]
    """Attempts and ranks."""


def one_for_nodes(folders: Iterable[Path]) -> list[Path]:
    """The same folders, with one in place of those that nodes of the same run wrote."""
    found = list(folders)
    runs: dict[str, list[Path]] = {}
    for folder in found if len(found) > 1 else ():
        with suppress(RunError):  # of a newer version, which opening it will say
            runs.setdefault(Facts(folder, {}).info.id, []).append(folder)
    for same in runs.values():
        nodes = [_looked_at(folder) for folder in same] if len(same) > 1 else []
        if nodes and not _twice(nodes):
            found = [*(folder for folder in found if folder not in same), _joined(nodes)]
    return found


def the_run_of(folders: Iterable[Path]) -> Path:
    """The one run that nodes wrote to these folders; an error where they hold several, or one of them twice."""
    nodes = [_looked_at(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    runs = {node.run: node for node in reversed(nodes)}
    if len(runs) > 1:
        named = ", ".join(f"{run} in {display_place(node.folder)}" for run, node in reversed(runs.items()))
        raise RunError(f"these are different runs, not folders of one run's nodes: {named}; open one at a time")
    if twice := _twice(nodes):
        raise RunError(
            f"{' and '.join(map(display_place, twice))} hold the same attempt of the same rank of {nodes[0].run}, "
            "so they are not folders of different nodes; leave one out"
        )
    return _joined(nodes) if len(nodes) > 1 else nodes[0].folder


def absent(folder: Path, facts: Facts) -> list[str]:
    """What of its run a folder lacks, in a line each: ranks, attempts before the last one, and what was not chosen."""
    stored = _parts(folder)
    wrote = stored | _told(facts)
    attempts, ranks = {attempt for attempt, _ in wrote}, {rank for _, rank in wrote}
    of_ranks, of_attempts = facts.info.world_size, max(attempts, default=0)
    found = [f"of its rollouts, those were chosen that fit {json.dumps(facts.chosen)}"] if facts.chosen else []
    if 0 < len(ranks) < of_ranks:
        few = f"rank {min(ranks)} alone" if len(ranks) == 1 else f"{len(ranks):,}"
        found.append(f"of {of_ranks:,} ranks, {few} wrote here; of nodes without a shared disk, name all folders")
    if len(attempts) < of_attempts:
        gone = count(of_attempts - len(attempts), "attempt")
        found.append(f"of {of_attempts:,} attempts, {gone} left nothing here; what they recorded may be elsewhere")
    return found + _without_rollouts(facts, {attempt for attempt, _ in stored})


def _without_rollouts(facts: Facts, stored: Collection[int]) -> list[str]:
    """Attempts that were killed, and trained before that: the next one went on from a later checkpoint."""
    starts: dict[int, int] = {}
    for attempt in facts.attempts:
        starts[attempt["attempt"]] = max(attempt["resumed_from"] or 0, starts.get(attempt["attempt"], 0))
    ended = {attempt["attempt"] for attempt in facts.attempts if attempt["ended"]}
    return [
        f"attempt {number} trained to step {after:,} and left no rollouts here; they may be elsewhere, or lost"
        for (number, start), (_, after) in pairwise(sorted(starts.items()))
        if number not in ended and number not in stored and start < after
    ]


def _looked_at(folder: Path) -> _Node:
    facts = Facts(folder, {})
    return _Node(folder, facts.info.id, frozenset(_parts(folder) | _told(facts)))


def _parts(folder: Path) -> set[tuple[int, int]]:
    """Attempts and ranks of which there are rollouts, also in parts that hold those of several."""
    paths = [part.path for part in find_parts(folder)]
    notes = {node: joined(node) for node in nodes_of(folder)}
    held = (name for path in paths for name in notes.get(path.parents[2], {}).get(file_name(path), ()))
    numbers = (Path(name).stem.split("-") for name in (*map(file_name, paths), *held))
    return {(int(attempt), int(rank)) for attempt, rank, _ in numbers}


def _told(facts: Facts) -> set[tuple[int, int]]:
    return {(attempt["attempt"], attempt["rank"]) for attempt in facts.attempts}


def _twice(nodes: Sequence[_Node]) -> list[Path]:
    """Two folders with files of the same attempt and rank, if there are."""
    for number, node in enumerate(nodes):
        for other in nodes[:number]:
            if node.wrote & other.wrote:
                return [other.folder, node.folder]
    return []


def _joined(nodes: Sequence[_Node]) -> Path:
    """Rank 0's folder comes first."""
    by_rank = sorted(nodes, key=lambda node: sorted((rank, attempt) for attempt, rank in node.wrote))
    return _join(nodes[0].run, [node.folder for node in by_rank])


def is_joined(folder: Path) -> bool:
    """Whether a folder stands for those of several nodes."""
    return (folder / NOTE).is_file()


def _join(run: str, folders: Sequence[Path]) -> Path:
    """The folder that stands for these, of one run."""
    text = json.dumps([str(folder.resolve()) for folder in folders])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    joined = root().joinpath("nodes", digest, *folders[0].resolve().parts[-3:-1], run)  # named as the run's folder is
    if not is_joined(joined):
        joined.mkdir(parents=True, exist_ok=True)
        (joined / NOTE).write_text(text, encoding="utf-8")
    return joined
