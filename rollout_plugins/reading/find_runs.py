"""Find runs in a run's folder, a folder of runs, a trainer's output_dir, or a folder of outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from rollout_plugins.errors import RunError
from rollout_plugins.reading.multi_node import combine_folders, combine_nodes
from rollout_plugins.reading.recorded_facts import Facts
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.run_facts import run_files
from rollout_plugins.store.runs_folder import homes_of
from rollout_plugins.system.remote_runs import is_url, local_path, remote_reader

_ACCEPTED = "give a run's folder, a folder of runs or the trainer's output_dir"
DEPTH = 6
"""How many levels of subfolders are searched for runs."""
_HOLDS_NONE = {"node_modules", "site-packages", "__pycache__"}
_INSTALLED = {"pyvenv.cfg", "conda-meta"}


def find_newest_run(path: str | Path | Sequence[str | Path]) -> Path:
    """Return the newest run that `find_all_runs` finds in a path, or the one run whose nodes wrote several paths."""
    if isinstance(path, (str, Path)):
        return find_all_runs(path)[-1]
    if not path:
        raise RunError("no run is named; give a folder, or those of the nodes of one run")
    return combine_folders([find_all_runs(each)[-1] for each in path])


def find_all_runs(path: str | Path) -> list[Path]:
    """Return the folders of all runs in a folder, below it, and beside it if it is an output_dir; oldest first.

    A run that several nodes wrote is represented by one folder.
    """
    if is_url(path):
        return sorted(combine_nodes(remote_reader().find(str(path))), key=_start_time)
    root = local_path(path)
    if not (root.exists() or any(home.is_dir() for home in homes_of(root))):
        raise RunError(f"{root} does not exist; {_suggest_folder(root) or _ACCEPTED}")
    if _is_run(root):
        return [root]
    beside = [run for home in homes_of(root) for run in find_runs(home)]
    folders = {folder.resolve(): folder for folder in (*beside, *find_runs(root), *_runs_below(root, DEPTH, set()))}
    if not folders:
        raise RunError(
            f"no run found in or below {root.resolve()}, nor in {root.resolve()}-rollouts; "
            "name the output_dir of a training, or try `rollouts demo`"
        )
    return sorted(combine_nodes(folders.values()), key=_start_time)


def _suggest_folder(path: Path) -> str:
    """Return a question that suggests an existing folder with a similar name, or ""."""
    parent = next((folder for folder in path.absolute().parents if folder.is_dir()), None)
    try:
        folders = [folder.name for folder in _list_folders(parent)] if parent else []
    except OSError:
        folders = []
    rest = path.absolute().relative_to(parent).parts if parent else ()
    for name in get_close_matches(rest[0], folders, n=1) if rest else ():
        return f"did you mean {str(Path(path.absolute().parents[len(rest) - 1], name, *rest[1:]))!r}?"
    return ""


def find_runs(folder: str | Path) -> list[Path]:
    """Return the runs directly inside a folder, oldest first. Imports that are not finished are hidden folders."""
    folder = Path(folder)
    try:
        runs = [path for path in _list_folders(folder) if _is_run(path)] if folder.is_dir() else []
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(runs, key=_start_time)


def _runs_below(folder: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the runs in subfolders, except in installed environments and folders that we may not read."""
    with suppress(OSError):
        place = folder.stat()
        if (place.st_dev, place.st_ino) in seen:  # symbolic links may form a cycle
            return
        seen.add((place.st_dev, place.st_ino))
        for path in _list_folders(folder):
            if _is_run(path):
                yield path
            elif depth > 1:
                yield from _runs_below(path, depth - 1, seen)


def _list_folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as scan:
        entries = list(scan)
    if any(entry.name in _INSTALLED for entry in entries):
        return []
    visible = (entry for entry in entries if entry.name not in _HOLDS_NONE and not entry.name.startswith("."))
    return [Path(entry.path) for entry in visible if entry.is_dir()]


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and (bool(run_files(folder)) or bool(find_parts(folder)))


def _start_time(folder: Path) -> tuple[float, str]:
    """Return when the run's newest attempt began, or the age of its oldest file if that is not recorded."""
    with suppress(RunError):  # opening the run of a newer version reports it
        recorded = Facts(folder, {}).started
        if recorded is not None:
            return recorded, folder.name
    files = run_files(folder) or [part.path for part in find_parts(folder)]
    return min((file.stat().st_mtime for file in files if file.exists()), default=0.0), folder.name
