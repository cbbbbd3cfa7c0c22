"""Where runs are: those that a run's folder, a folder of runs, an output_dir or a folder of outputs stands for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from rollout_plugins.errors import RunError
from rollout_plugins.reading.multi_node import one_for_nodes, the_run_of
from rollout_plugins.reading.recorded_facts import Facts
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.run_facts import run_files
from rollout_plugins.store.runs_folder import homes_of
from rollout_plugins.system.remote_runs import is_url, local_path, remote_reader

_WANTED = "give a run's folder, a folder of runs or the trainer's output_dir"
DEPTH = 6
"""How many folders below the one that was named runs are looked for."""
_HOLDS_NONE = {"node_modules", "site-packages", "__pycache__"}
_INSTALLED = {"pyvenv.cfg", "conda-meta"}


def newest_in(path: str | Path | Sequence[str | Path]) -> Path:
    """The newest run that `found_in` finds; of several paths the one run that they are the nodes of."""
    if isinstance(path, (str, Path)):
        return found_in(path)[-1]
    if not path:
        raise RunError("no run is named; give a folder, or those of the nodes of one run")
    return the_run_of([found_in(each)[-1] for each in path])


def found_in(path: str | Path) -> list[Path]:
    """The folders of the runs in a folder, below it, and beside it when it is an output_dir; oldest first.

    One folder stands for those of a run that several nodes wrote.
    """
    if is_url(path):
        return sorted(one_for_nodes(remote_reader().find(str(path))), key=_started)
    root = local_path(path)
    if not (root.exists() or any(home.is_dir() for home in homes_of(root))):
        raise RunError(f"{root} does not exist; {_near(root) or _WANTED}")
    if _is_run(root):
        return [root]
    beside = [run for home in homes_of(root) for run in find_runs(home)]
    found = {folder.resolve(): folder for folder in (*beside, *find_runs(root), *_below(root, DEPTH, set()))}
    if not found:
        raise RunError(
            f"no run found in or below {root.resolve()}, nor in {root.resolve()}-rollouts; "
            "name the output_dir of a training, or try `rollouts demo`"
        )
    return sorted(one_for_nodes(found.values()), key=_started)


def _near(path: Path) -> str:
    """Return a question about the folder that may have been meant; empty where no name is like this one."""
    parent = next((folder for folder in path.absolute().parents if folder.is_dir()), None)
    try:
        folders = [folder.name for folder in _folders(parent)] if parent else []
    except OSError:
        folders = []
    rest = path.absolute().relative_to(parent).parts if parent else ()
    for name in get_close_matches(rest[0], folders, n=1) if rest else ():
        return f"did you mean {str(Path(path.absolute().parents[len(rest) - 1], name, *rest[1:]))!r}?"
    return ""


def find_runs(folder: str | Path) -> list[Path]:
    """Runs directly inside a folder, oldest first; not those that an import is still writing, which are hidden."""
    folder = Path(folder)
    try:
        found = [path for path in _folders(folder) if _is_run(path)] if folder.is_dir() else []
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(found, key=_started)


def _below(folder: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Runs in the folders of a folder. What an environment installed, and what we may not read, is passed over."""
    with suppress(OSError):
        place = folder.stat()
        if (place.st_dev, place.st_ino) in seen:  # links may go in circles
            return
        seen.add((place.st_dev, place.st_ino))
        for path in _folders(folder):
            if _is_run(path):
                yield path
            elif depth > 1:
                yield from _below(path, depth - 1, seen)


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        found = list(entries)
    if any(entry.name in _INSTALLED for entry in found):
        return []
    seen = (entry for entry in found if entry.name not in _HOLDS_NONE and not entry.name.startswith("."))
    return [Path(entry.path) for entry in seen if entry.is_dir()]


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and (bool(run_files(folder)) or bool(find_parts(folder)))


def _started(folder: Path) -> tuple[float, str]:
    """When the run says that it began, its newest attempt if there are several; else when its files are from."""
    with suppress(RunError):  # a newer version's run, which opening it will say
        told = Facts(folder, {}).started
        if told is not None:
            return told, folder.name
    files = run_files(folder) or [part.path for part in find_parts(folder)]
    return min((file.stat().st_mtime for file in files if file.exists()), default=0.0), folder.name
