"""Which run this is: one id for all ranks without a collective, and the same id again after a resume."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

logger = logging.getLogger("rollout_plugins")

MARKER = "rollouts.json"


@dataclass(frozen=True)
class Identity:
    """A run, and which start of it this is."""

    id: str
    attempt: int = 1
    generation: int = 0
    resumed_from: int | None = None


def new_id() -> str:
    """Sorts by time for people, unique by chance; draws from no generator that training uses."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def identify(root: Path, key: str, checkpoint: Path | None, step: int, restarted: str | None) -> Identity:
    """A fresh run, or the next attempt of the run that wrote the checkpoint or is starting over."""
    mine = Identity(new_id(), resumed_from=step or None)
    marker = _read_marker(checkpoint) if checkpoint is not None else {}
    name = restarted or str(marker.get("run", ""))
    if name and Path(name).name == name and (root / name).is_dir():
        mine = Identity(name, _last_attempt(root / name) + 1, int(marker.get("generation", 0)), step)
    agreed = agree(key, json.dumps(vars(mine)))
    return Identity(**json.loads(agreed))


def agree(key: str, mine: str) -> str:
    """The first writer's value, on every rank that asks. Waits for nobody, so any rank may be absent."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_PORT" not in os.environ:
        return mine
    try:
        from torch import distributed

        if not distributed.is_initialized():
            return mine
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = distributed.TCPStore(
            address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5)
        )
        return bytes(distributed.PrefixStore("rollout_plugins", store).compare_set(key, "", mine)).decode()
    except Exception as error:  # every rank then has a run of its own, which is said, and loses nothing
        logger.warning("ranks could not agree on a run id (%r); each records a run of its own", error)
        return mine


def write_marker(checkpoint: Path, run: str, generation: int) -> None:
    """Note in a checkpoint which run it belongs to, so that a resume continues that run."""
    if checkpoint.is_dir():
        with suppress(OSError):
            (checkpoint / MARKER).write_text(json.dumps({"run": run, "generation": generation}), encoding="utf-8")


def _read_marker(checkpoint: Path) -> dict[str, Any]:
    try:
        marker = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _last_attempt(folder: Path) -> int:
    """The highest attempt in a run's files."""
    attempts = [1]
    for path in folder.glob("run*.json"):
        with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
            facts = json.loads(path.read_text(encoding="utf-8"))
            attempts += [int(attempt["attempt"]) for attempt in facts["attempts"]]
    return max(attempts)
