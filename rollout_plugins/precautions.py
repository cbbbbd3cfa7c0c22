"""What is checked, and said, before a run: mistakes of setup fail early and name the fix."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from rollout_plugins.errors import SetupError
from rollout_plugins.hosts.facts import installed
from rollout_plugins.store.read import find_runs, open_run

logger = logging.getLogger("rollout_plugins")

#: Runs of this process, and those that it told of.
_known: set[Path] = set()

TRL_FLOOR = (0, 22)
TRL_LOG_COMPLETIONS_CAN_CRASH = (1, 15)


def check_trl() -> None:
    found = _version("trl")
    if found is not None and found < TRL_FLOOR:
        floor = ".".join(map(str, TRL_FLOOR))
        raise SetupError(
            f"trl {installed('trl')} is too old: rollout-plugins needs {floor} or newer; pip install -U trl"
        )


def _version(package: str) -> tuple[int, ...] | None:
    text = installed(package)
    if text is None:
        return None
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def tell_of_unfinished(root: Path, current: str) -> None:
    """Say what earlier runs in the folder left behind when they were killed: it is all readable."""
    _known.add(root / current)
    for folder in find_runs(root):
        if folder in _known:
            continue
        _known.add(folder)
        run = open_run(folder)
        if run.attempts and not any(attempt.get("ended") for attempt in run.attempts):
            logger.warning("%s did not end properly, or still runs; its %d rollouts are readable", folder, len(run))


def checked_dir(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    folder = Path(path).absolute()  # a reward may change the working directory
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"dir={str(folder)!r} is a file; give a folder, or leave it out")
    return folder


def warn_of_log_completions(trainer: Any) -> None:
    found = _version("trl")
    if found and found >= TRL_LOG_COMPLETIONS_CAN_CRASH and getattr(trainer.args, "log_completions", False):
        logger.warning(
            "log_completions=True: the completions table of trl %s ends training with an exception on ordinary tool "
            "calls and mixed content; every rollout is recorded here anyway, so set log_completions=False",
            installed("trl"),
        )
