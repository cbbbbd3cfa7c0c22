"""What the person at the terminal is told: where a run is, when it begins and when it ends, and warnings."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from rollout_hookspecs import Run

from rollout_plugins.content.bars import AboveBars
from rollout_plugins.content.names import count, listed
from rollout_plugins.engine.counters import Counters

logger = logging.getLogger("rollout_plugins")
logger.addHandler(AboveBars(logging.WARNING))

_said: set[str] = set()
_named: dict[str, str] = {}


def say_start(run: Run) -> None:
    """Once a run, on rank 0."""
    _say(run, "records every rollout. To see them, now or later:")


def say_end(run: Run, counters: Counters) -> None:
    """Once a run, on rank 0: how many there are, and what was lost."""
    kept = count(sum(counters.rollouts.values()), "rollout")
    here = f" on rank 0 of {run.world_size}" if run.world_size > 1 else ""
    lost, untrained, unsent = listed(counters.drops), listed(counters.untrained), listed(counters.unsent, "to ")
    failed = listed({who: n for who, n in counters.errors.items() if who not in counters.unsent})
    parts = [f"lost: {lost}" if lost else "none lost"]
    parts += [f"not trained on: {untrained}"] if untrained else []
    parts += [f"not sent: {unsent}"] if unsent else []
    parts += [f"errors of plugins: {failed}"] if failed else []
    _say(run, f"recorded {kept}{here}, {', '.join(parts)}. To see them:")


def _say(run: Run, text: str) -> None:
    moment = f"{run.dir} {text.partition(' ')[0]}"
    if run.rank or moment in _said or _is_silenced():
        return
    _said.add(moment)
    folder = _named.setdefault(run.dir, _short(run.dir))  # a reward may change the working directory meanwhile
    with suppress(Exception):  # nobody has to have a terminal
        _write(f"rollout-plugins {text} {_how_to_see(folder)}")


def _how_to_see(folder: str) -> str:
    return f"open_run({folder!r})" if "ipykernel.kernelapp" in sys.modules else f"rollouts view {shlex.quote(folder)}"


def _is_silenced() -> bool:
    """Whether somebody wants no such lines, of this library or of any."""
    return logger.level > logging.INFO or logging.root.manager.disable >= logging.INFO


def _short(folder: str) -> str:
    """As a person would type it in the shell, which is elsewhere when a script went to a folder of its own."""
    with suppress(OSError, ValueError):
        here = Path.cwd()
        if here.samefile(os.environ.get("PWD", here)):
            return str(Path(folder).relative_to(here))
    return folder


def _write(line: str) -> None:
    """On standard error, and not into the trainer's progress bar."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None:
        sys.stderr.write(f"{line}\n")
    else:
        tqdm.write(line, file=sys.stderr)
