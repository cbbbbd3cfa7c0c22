"""Which run this is: one id for all ranks without a collective, and the same id again after a resume."""

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
from rollout_plugins.store.run_facts import earlier_attempts, whole
from rollout_plugins.store.stored_counts import last_generation
from rollout_plugins.store.write import ATTEMPTS
from rollout_plugins.system.files import replace_file

logger = logging.getLogger("rollout_plugins")

MARKER = "rollouts.json"
#: How long a rank that lost its folder lets others speak first.
KNOWING = timedelta(seconds=3)


@dataclass(frozen=True)
class Identity:
    """A run, and which start of it this is."""

    id: str
    attempt: int = 1
    generation: int = 0
    resumed_from: int | None = None
    launch: str = ""
    """The same for all processes that begin it together; empty where they could not agree."""


def new_id() -> str:
    """Sorts by time for people, unique by chance; draws from no generator that training uses."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def identify(root: Path, key: str, checkpoint: Path | None, step: int, restarted: Run | None) -> Identity:
    """A fresh run, or the next attempt of the run that wrote the checkpoint or is starting over."""
    mine = Identity(new_id(), resumed_from=step or None)
    marker = _read_marker(checkpoint)
    name = restarted.id if restarted else run_of(checkpoint)
    is_here = restarted is not None or (root / name).is_dir()
    if name and (is_here or marker.get("home") == _home(root)):  # elsewhere it would be a branch of that run
        last = _last_attempt(root / name) if is_here else whole(marker.get("attempt"))
        begun = restarted.attempt if restarted else 1  # of which there need not be anything on the disk yet
        generation = whole(marker.get("generation")) or 0
        mine = Identity(name, max(begun, last or 1) + 1, generation, step)
    found = _agreed(key, mine, place_in_launch()[1], is_known=is_here or not name)
    if found.attempt > 1:
        found = _unshared(root / found.id, found)
    if found.launch and run_of(checkpoint) == found.id:
        write_marker(checkpoint, root / found.id, found.attempt, found.generation)
    return found


def identify_loop(
    root: Path, opened: int, name: str | None, resumed_from: int | None, *, file: str, world_size: int
) -> Identity:
    """For a loop: a fresh run, or the next attempt of the run of that name.

    `opened` counts the runs that this process opened before. `file` is where this rank notes its attempts; it counts
    those when it cannot agree with the others.
    """
    key = f"{root}|loop|{opened}|{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    can_agree = ranks_can_agree(world_size)
    if name is None:
        if not can_agree:
            logger.warning("each process records a run of its own: give all of them the same run_id to make it one")
        return _agreed(key, Identity(new_id()), world_size)
    before = _last_attempt(root / name, "run*.json" if can_agree else file)
    last = max(1, before) if resumed_from else before  # a loop may begin at step 0, from no checkpoint
    mine = Identity(name, last + 1, _generations(root / name, before), resumed_from)
    found = _agreed(key, mine, world_size, is_known=last == before)
    return replace(found, attempt=max(found.attempt, last + 1))  # of a rank that lost its folder, and does not know


def place_in_launch() -> tuple[int, int]:
    """This process's rank and the number of processes, as launchers tell them."""
    return environment.number("RANK", "0"), environment.number("WORLD_SIZE", "1")


def claimed(run: Run) -> Run:
    """The run, as an attempt of its own: processes without a number that begin at once find the same one."""
    if run.world_size > 1:
        return run
    mine = Identity(run.id, run.attempt, resumed_from=run.resumed_from, launch=secrets.token_hex(4))
    found = _unshared(Path(run.dir), mine)
    return replace(run, attempt=found.attempt, resumed_from=found.resumed_from)


def _unshared(folder: Path, found: Identity) -> Identity:
    """With an attempt that no other launch has taken, such as one that resumes the same checkpoint at this moment.

    The first of them says where it goes on from. Said again, that would hide what the first one records.
    """
    with suppress(OSError):  # a folder that cannot be written to is the store's to tell of
        for attempt in itertools.count(found.attempt) if found.launch else ():
            if _takes(folder / ATTEMPTS / f"{attempt:03d}", found.launch):
                return found if attempt == found.attempt else replace(found, attempt=attempt, resumed_from=None)
    return found


def _takes(attempt: Path, launch: str) -> bool:
    """Whether the attempt is this launch's, now or since one of its processes took it. Renaming takes it at once."""
    # A folder with something in it: renaming would replace an empty one that is there already.
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
    """Whether there is one process, or a store that all of them reach: torchrun's, or the process group's."""
    if world_size == 1:
        return True
    distributed = sys.modules.get("torch.distributed")
    is_ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return "MASTER_PORT" in os.environ and (is_ready or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def _agreed(key: str, mine: Identity, world_size: int, *, is_known: bool = True) -> Identity:
    """The first writer's identity, on every rank that asks. Waits for no other rank, so any may be absent.

    A rank that goes on with a run of which its disk has nothing lets those that know it come first, for a moment.
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
        ranks = distributed.PrefixStore("rollout_plugins", store)
        if not is_known:
            with suppress(RuntimeError):  # nobody does
                ranks.wait([key], KNOWING)
        # Sets the value only where there is none yet, and returns what is there: the first rank's, on every rank.
        first = ranks.compare_set(key, "", json.dumps(vars(with_launch)))
        return Identity(**json.loads(bytes(first)))
    except Exception as error:  # every rank then has a run of its own, which is said, and loses nothing
        logger.warning("ranks could not agree on a run id (%r); each records a run of its own", error)
        return mine


def write_marker(checkpoint: Path | None, run: Path, attempt: int, generation: int) -> None:
    """Note in a checkpoint which run it belongs to, so that a resume continues that run.

    A resume notes its attempt there, for the next one, which may find an empty disk.
    """
    if checkpoint is not None and checkpoint.is_dir():
        noted = {"run": run.name, "home": _home(run.parent), "attempt": attempt, "generation": generation}
        text = json.dumps(noted)
        with suppress(OSError):
            replace_file(checkpoint / MARKER, lambda path: path.write_text(text, encoding="utf-8"), sync=False)


def _home(root: Path) -> int:
    """Tells one folder of runs from another, on whatever machine, and names none in a file that may be published."""
    return crc32(str(root.absolute()).encode())


def run_of(checkpoint: Path | None) -> str:
    """The name of the run that wrote the checkpoint; empty when it does not say."""
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
    """The highest attempt in a run's files; 0 when they tell of none."""
    attempts = [attempt for path in folder.glob(files) for attempt in earlier_attempts(path)]
    return max((whole(attempt.get("attempt")) or 0 for attempt in attempts), default=0)


def _generations(folder: Path, attempt: int) -> int:
    """How many generation batches a run had up to an attempt, so that the next ones are counted on."""
    last = last_generation(folder, attempt) if attempt else None
    return 0 if last is None else last + 1
