"""Determine the id of a run: the same on all ranks, without a collective, and the same again after a resume."""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

from rollout_hookspecs import Run

from rollout_plugins.engine import env_vars as environment
from rollout_plugins.store.run_facts import as_count, earlier_attempts
from rollout_plugins.store.stored_counts import last_generation
from rollout_plugins.store.write import ATTEMPTS
from rollout_plugins.system.files import replace_file

logger = logging.getLogger("rollout_plugins")

MARKER = "rollouts.json"
#: How long a rank without the run's folder waits for a rank that has it.
WAIT_FOR_OWNER = timedelta(seconds=3)


@dataclass(frozen=True)
class Identity:
    """The id of a run, and the number of its attempt."""

    id: str
    attempt: int = 1
    generation: int = 0
    resumed_from: int | None = None
    launch: str = ""
    """A token that all processes of this launch share; empty if they could not agree on one."""


def new_id() -> str:
    """Return an id that sorts by time and is random, without using a random generator of the training."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def identify(root: Path, key: str, checkpoint: Path | None, step: int, restarted: Run | None) -> Identity:
    """Return a new run, or the next attempt of the run that wrote the checkpoint or that restarts."""
    mine = Identity(new_id(), resumed_from=step or None)
    marker = _read_marker(checkpoint)
    name = restarted.id if restarted else run_of(checkpoint)
    has_folder = restarted is not None or (root / name).is_dir()
    if name and (has_folder or marker.get("home") == _home(root)):  # in another folder of runs, it is a new run
        last = _last_attempt(root / name) if has_folder else as_count(marker.get("attempt"))
        restarted_attempt = restarted.attempt if restarted else 1  # it may have written nothing yet
        generation = as_count(marker.get("generation")) or 0
        mine = Identity(name, max(restarted_attempt, last or 1) + 1, generation, step)
    agreed = _agree(key, mine, place_in_launch()[1], has_files=has_folder or not name)
    if agreed.attempt > 1:
        agreed = _find_free_attempt(root / agreed.id, agreed)
    if agreed.launch and run_of(checkpoint) == agreed.id:
        write_marker(checkpoint, root / agreed.id, agreed.attempt, agreed.generation)
    return agreed


def identify_loop(
    root: Path, runs_opened: int, name: str | None, resumed_from: int | None, *, file: str, world_size: int
) -> Identity:
    """Return the identity for a custom loop: a new run, or the next attempt of the run `name`.

    `runs_opened` is the number of runs that this process opened before. `file` is the run file of this rank, which
    counts its attempts if it cannot agree with the others.
    """
    key = f"{root}|loop|{runs_opened}|{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    can_agree = ranks_can_agree(world_size)
    if name is None:
        if not can_agree:
            logger.warning("each process records its own run; pass the same run_id in all of them to record one run")
        return _agree(key, Identity(new_id()), world_size)
    before = _last_attempt(root / name, "run*.json" if can_agree else file)
    last = max(1, before) if resumed_from else before  # 0: from the beginning
    mine = Identity(name, last + 1, _count_generations(root / name, before), resumed_from)
    agreed = _agree(key, mine, world_size, has_files=last == before)
    return replace(agreed, attempt=max(agreed.attempt, last + 1))  # may be that of a rank without files


def place_in_launch() -> tuple[int, int]:
    """Return this process's rank and the number of processes, from the launcher's variables."""
    return environment.number("RANK", "0"), environment.number("WORLD_SIZE", "1")


def claim_attempt(run: Run) -> Run:
    """Return the run with an attempt that no other process has, because processes without a rank may start at once."""
    if run.world_size > 1:
        return run
    mine = Identity(run.id, run.attempt, resumed_from=run.resumed_from, launch=secrets.token_hex(4))
    claimed = _find_free_attempt(Path(run.dir), mine)
    return replace(run, attempt=claimed.attempt, resumed_from=claimed.resumed_from)


def _find_free_attempt(folder: Path, identity: Identity) -> Identity:
    """Return the identity with an attempt that no other launch has claimed, such as one from the same checkpoint.

    Only the first claim keeps `resumed_from`: in a later one, it would hide what the first one records.
    """
    with suppress(OSError):  # the store reports a folder that is not writable
        for attempt in itertools.count(identity.attempt) if identity.launch else ():
            if _claim(folder / ATTEMPTS / f"{attempt:03d}", identity.launch):
                return (
                    identity if attempt == identity.attempt else replace(identity, attempt=attempt, resumed_from=None)
                )
    return identity


def _claim(attempt: Path, launch: str) -> bool:
    """Claim an attempt for this launch; return whether it has it, now or already. Renaming makes this atomic."""
    # Not an empty folder: renaming onto an existing empty folder would replace it.
    own = attempt.with_name(f".{secrets.token_hex(8)}")
    (own / launch).mkdir(parents=True)
    try:
        own.rename(attempt)
    except OSError:
        shutil.rmtree(own)
        if not attempt.is_dir():
            raise
    return (attempt / launch).is_dir()


def ranks_can_agree(world_size: int) -> bool:
    """Return whether there is one process, or a store that all processes reach: torchrun's or the process group's."""
    if world_size == 1:
        return True
    distributed = sys.modules.get("torch.distributed")
    is_ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return "MASTER_PORT" in os.environ and (is_ready or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def _agree(key: str, mine: Identity, world_size: int, *, has_files: bool = True) -> Identity:
    """Return the identity that the first rank wrote, on every rank. No rank waits for another, so any may be missing.

    A rank that continues a run of which it has no files lets a rank that has them write first.
    """
    with_launch = replace(mine, launch=secrets.token_hex(4))
    if world_size == 1:
        return with_launch
    if not ranks_can_agree(world_size):
        return mine
    try:
        from torch import distributed

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = distributed.TCPStore(
            address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5)
        )
        store_of_ranks = distributed.PrefixStore("rollout_plugins", store)
        if not has_files:
            with suppress(RuntimeError):  # no rank has them
                store_of_ranks.wait([key], WAIT_FOR_OWNER)
        # Sets the value only if it is missing, and returns the current one: the first rank's, on every rank.
        first = store_of_ranks.compare_set(key, "", json.dumps(vars(with_launch)))
        return Identity(**json.loads(bytes(first)))
    except Exception as error:  # nothing is lost: every rank then records its own run
        logger.warning("ranks could not agree on a run id (%r), so each records its own run", error)
        return mine


def write_marker(checkpoint: Path | None, run: Path, attempt: int, generation: int) -> None:
    """Write into a checkpoint which run it belongs to, so that a resume continues that run.

    A resume also writes its attempt, for a later resume on a machine without the run's files.
    """
    if checkpoint is not None and checkpoint.is_dir():
        marker = {"run": run.name, "home": _home(run.parent), "attempt": attempt, "generation": generation}
        text = json.dumps(marker)
        with suppress(OSError):
            replace_file(checkpoint / MARKER, lambda path: path.write_text(text, encoding="utf-8"), sync=False)


def _home(root: Path) -> int:
    """Return a number for a folder of runs that does not reveal its name, since checkpoints are published."""
    return crc32(str(root.absolute()).encode())


def run_of(checkpoint: Path | None) -> str:
    """Return the name of the run that wrote the checkpoint; empty if unknown."""
    name = str(_read_marker(checkpoint).get("run", ""))
    return name if Path(name).name == name != ".." else ""


def _read_marker(checkpoint: Path | None) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    try:
        marker = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _last_attempt(folder: Path, files: str = "run*.json") -> int:
    """Return the highest attempt in a run's files; 0 if there is none."""
    attempts = [attempt for path in folder.glob(files) for attempt in earlier_attempts(path)]
    return max((as_count(attempt.get("attempt")) or 0 for attempt in attempts), default=0)


def _count_generations(folder: Path, attempt: int) -> int:
    """Return how many generation batches a run had up to an attempt, to number the next ones."""
    last = last_generation(folder, attempt) if attempt else None
    return 0 if last is None else last + 1
