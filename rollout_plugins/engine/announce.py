"""Print where a run is when it starts and what was recorded when it ends, and show warnings."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rollout_hookspecs import Finding, Run

from rollout_plugins.content.findings import distinct, summary
from rollout_plugins.engine.counters import Counters
from rollout_plugins.system.labels import count, format_counts
from rollout_plugins.system.progress_bars import AboveBars

logger = logging.getLogger("rollout_plugins")
logger.addHandler(AboveBars(logging.WARNING))

#: How many findings the last line of a training names.
MAX_TITLES = 3
_announced: set[str] = set()
_short_names: dict[str, str] = {}


def announce_start(run: Run) -> None:
    """Print where the rollouts will be, once for each run, on rank 0."""
    _announce(run, "records every rollout. To see them, now or later:")


def announce_end(run: Run, counters: Counters, findings: Sequence[Finding] = ()) -> None:
    """Print how many rollouts were recorded, what was lost and what was found, once for each run, on rank 0."""
    recorded = count(sum(counters.rollouts.values()), "rollout")
    on_rank = f" on rank 0 of {run.world_size}" if run.world_size > 1 else ""
    lost, untrained, unsent = (
        format_counts(counters.drops),
        format_counts(counters.untrained),
        format_counts(counters.unsent, "to "),
    )
    failed = format_counts({name: n for name, n in counters.errors.items() if name not in counters.unsent})
    parts = [f"lost: {lost}" if lost else "none lost"]
    parts += [f"not trained on: {untrained}"] if untrained else []
    parts += [f"not sent: {unsent}"] if unsent else []
    parts += [f"errors of plugins: {failed}"] if failed else []
    _announce(run, f"recorded {recorded}{on_rank}, {', '.join(parts)}. To see them:")
    if findings:
        _announce(run, f"found {summary(findings)}: {_titles(findings)}. To see why:", "check")


def _titles(findings: Sequence[Finding]) -> str:
    """Return the first few titles, the most severe first."""
    titles = [finding.title for finding in distinct(findings)]
    more = [f"{len(titles) - MAX_TITLES} more"] if len(titles) > MAX_TITLES else []
    return "; ".join([*titles[:MAX_TITLES], *more])


def _announce(run: Run, text: str, command: str = "view") -> None:
    key = f"{run.dir} {text.partition(' ')[0]}"
    if run.rank or key in _announced or _is_silenced():
        return
    _announced.add(key)
    # Shortened once, since a reward may change the working directory.
    folder = _short_names.setdefault(run.dir, _short_name(run.dir))
    with suppress(Exception):  # there may be no terminal
        _write(f"rollout-plugins {text} {_command(folder, command)}")


def _command(folder: str, command: str) -> str:
    """Return the command that opens the run: of the shell, or of Python in a notebook."""
    if "ipykernel.kernelapp" in sys.modules:
        return f"open_run({folder!r}).check()" if command == "check" else f"open_run({folder!r})"
    return f"rollouts {command} {shlex.quote(folder)}"


def _is_silenced() -> bool:
    """Return whether log lines of level INFO are disabled, of this library or of all."""
    return logger.level > logging.INFO or logging.root.manager.disable >= logging.INFO


def _short_name(folder: str) -> str:
    """Return the folder relative to the shell's, unless the script changed its working directory."""
    with suppress(OSError, ValueError):
        working_dir = Path.cwd()
        if working_dir.samefile(os.environ.get("PWD", working_dir)):
            return str(Path(folder).relative_to(working_dir))
    return folder


def _write(line: str) -> None:
    """Write to standard error, above the trainer's progress bar if there is one."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None:
        sys.stderr.write(f"{line}\n")
    else:
        tqdm.write(line, file=sys.stderr)
