"""Create the `Run` that a trainer starts: its id, its folder and its settings."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from rollout_hookspecs import Host, Run

from rollout_plugins.engine.run_id import identify, run_of
from rollout_plugins.hosts.kit.find_trainer import checkpoint_being_resumed
from rollout_plugins.store.runs_folder import home_of, homes_of

#: Number of runs and attempts that this process started in each folder of runs; the same on every rank.
_runs_begun: Counter[Path] = Counter()


def new_run(
    trainer: Any,
    host: Host,
    *,
    step: int,
    output_dir: Path,
    runs_dir: Path | None,
    restarted: Run | None,
) -> tuple[Run, int]:
    """Return the run, or the attempt of a run, that starts at this step, and the number of its first generation.

    `runs_dir` is the callback's option `dir`, and `restarted` the run whose training the trainer itself restarts, with
    a smaller batch.
    """
    checkpoint = checkpoint_being_resumed(trainer) if step else None
    root = _root(output_dir, runs_dir, checkpoint, restarted)
    # Ranks agree on an identity under this key. After an elastic restart they count from 1 again, but their shared
    # store still has the identities of the previous launch.
    _runs_begun[root] += 1
    key = f"{root}|{_runs_begun[root]}|{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    identity = identify(root, key, checkpoint, step, restarted)
    run = Run(
        id=identity.id,
        attempt=identity.attempt,
        dir=str(root / identity.id),
        name=output_dir.name,
        rank=trainer.accelerator.process_index,
        world_size=trainer.accelerator.num_processes,
        host=host.name,
        resumed_from=identity.resumed_from,
        **host.describe(trainer),
    )
    return run, identity.generation


def _root(output_dir: Path, option: Path | None, checkpoint: Path | None, restarted: Run | None) -> Path:
    """Return the folder of runs: the option, otherwise that of the continued run, otherwise the default."""
    if option is not None:
        return option
    if restarted:
        return Path(restarted.dir).parent
    name = run_of(checkpoint)
    homes = homes_of(output_dir)
    return next((home for home in homes if name and (home / name).is_dir()), home_of(output_dir))
