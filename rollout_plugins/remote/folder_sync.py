"""Copy the files of a run's folder that another folder lacks, each once, even if a process is killed meanwhile.

Parts, media and annotations never change once they have their final name, so a file of the same name and size is the
same file. Other files, such as run files, are sent again when they have changed. Entries that only the target has,
from other nodes or lost disks, are kept.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from rollout_plugins.reading.relocated_parts import relocated_urls
from rollout_plugins.remote.folders import File, Folder, files_of
from rollout_plugins.remote.pruning import is_pruned
from rollout_plugins.store.joined_parts import NOTE, read_joined_parts, record_joined_parts
from rollout_plugins.store.run_facts import as_count, earlier_attempts
from rollout_plugins.store.write import run_file
from rollout_plugins.system.node_folders import nodes_of

_PART = re.compile(r"data/[^/]+/(\d+-\d+)-\d+\.(parquet|arrows)")
_OF_A_RUN = re.compile(rf"(.*/|)(run(-\d+)?\.json|{_PART.pattern})")
_FACTS = re.compile(r"run(-\d+)?\.json")
#: Rollouts follow the images in them and the list of joined parts; the run files that count them come last.
_ORDER = (NOTE, "media/", "data/", "steps/", "annotations/", "")


class Copying:
    """A copy from a run's folder to another folder."""

    def __init__(
        self,
        source: Path,
        target: Folder,
        *,
        idle_seconds: float = 0.0,
        journals: bool = True,
        send_joined: bool = True,
    ) -> None:
        """`idle_seconds`: how long a journal must be unchanged before it is copied; infinite to wait for the sealed
        part.

        `send_joined`: whether to send a joined part if the target has all parts in it; that makes reading faster.
        """
        self.target = target
        self.failed: dict[str, str] = {}
        """The files that the last `send` could not copy, with the reason."""
        self.sent = 0
        self._source = source
        self._idle = idle_seconds
        self._has_journals = journals
        self._has_joined = send_joined
        self._there = target.sizes()
        self._stamps: dict[str, tuple[int, int]] = {}
        self._journals: dict[str, tuple[int, float]] = {}
        self._earlier: dict[str, list[dict[str, Any]]] = {}

    @classmethod
    def beside(cls, source: Path, parent: Folder, attempt: int, rank: int, **options: Any) -> Copying:
        """Copy to the folder of the same name in `parent`, or to `<name>-2` and so on if that has another run."""
        number, name = 1, source.name
        while True:
            copying = cls(source, parent.inside(name), **options)
            if not copying.is_of_another_run(attempt, rank):
                return copying
            number += 1
            name = f"{source.name}-{number}"

    def is_of_another_run(self, attempt: int, rank: int) -> bool:
        """Return True if the target has files of another run under our names, because a run id was used twice."""
        ours = [file.name for file in files_of(self._source) if _PART.fullmatch(file.name)]
        stem = f"{attempt:03d}-{rank:05d}"
        nodes = nodes_of(self._source)
        gone = (*chain.from_iterable(map(relocated_urls, nodes)), *_held(nodes))
        own_stems = {Path(name).with_suffix("") for name in (*ours, *gone)}
        complete = {Path(name).with_suffix("") for name in (*filter(is_fixed, ours), *gone)}
        theirs = [name for name in self._there if (part := _PART.fullmatch(name)) and part[1] == stem]
        # A part that is complete in the target while it still grows here is not ours.
        foreign = (
            name for name in theirs if Path(name).with_suffix("") not in (complete if is_fixed(name) else own_stems)
        )
        return self.differs() or any(foreign) or self._began_otherwise(run_file(rank))

    def differs(self) -> bool:
        """Return True if the target has a different part under one of our names."""
        parts = [file for file in files_of(self._source) if _PART.fullmatch(file.name) and is_fixed(file.name)]
        others = [file for file in parts if self._there.get(file.name, file.size) != file.size]
        return not all(is_pruned(file.path) for file in others)

    def _began_otherwise(self, name: str) -> bool:
        """Return True if an attempt in both folders began at different times."""
        there = _starts(self._attempts_there(name))
        ours = [attempt for node in nodes_of(self._source) for attempt in earlier_attempts(node / name)]
        return any(there.get(attempt, start) != start for attempt, start in _starts(ours).items())

    def _attempts_there(self, name: str) -> list[dict[str, Any]]:
        """Return the attempts in a run file of the target, as of the first look or send."""
        if name not in self._earlier:
            with tempfile.TemporaryDirectory(prefix="rollouts-") as temporary:
                if name in self._there:
                    self.target.fetch(name, Path(temporary, name))
                self._earlier[name] = earlier_attempts(Path(temporary, name))
        return self._earlier[name]

    def pending(self, *, everything: bool = False) -> list[File]:
        """Return the files that the target lacks, in sending order; with `everything`, also growing journals."""
        missing = [file for file in files_of(self._source) if self._lacks(file) and (everything or self._rests(file))]
        return sorted(missing, key=lambda file: (_rank(file), file.name))

    def _lacks(self, file: File) -> bool:
        if is_fixed(file.name):
            return file.name not in self._there and not self._has_more(file)
        if file.name.endswith(".arrows") and not self._has_journals:
            return False
        return self._stamps.get(file.name) != _stamp(file)

    def _has_more(self, file: File) -> bool:
        """Return True if the target has the parts in a joined part and needs no more, or has a larger part."""
        held = self._held_parts(file)
        is_enough = not self._has_joined or is_pruned(file.path) if held else False
        return is_enough and self._there.keys() >= set(held)

    def _held_parts(self, file: File) -> list[str]:
        """Return the names of the original parts in a joined part, or nothing for another part."""
        if not file.name.startswith("data/"):
            return []
        notes = read_joined_parts(_root(file))
        return [name for name in notes.get(file.name, ()) if name not in notes]

    def _rests(self, file: File) -> bool:
        """Return True if nobody has written to a journal for a while, by a monotonic clock."""
        if not file.name.endswith(".arrows"):
            return True
        size, since = self._journals.get(file.name, (-1, 0.0))
        if size != file.size:
            self._journals[file.name] = file.size, time.monotonic()
            return self._idle <= 0
        return time.monotonic() - since >= self._idle

    def send(self, files: list[File], told: Callable[[File], object] = lambda _: None) -> bool:
        """Send files, and return True if all arrived."""
        self.failed = {}
        stamps = {file.name: _stamp(file) for file in files}

        def sent(file: File) -> None:
            self._there[file.name] = file.size
            self._stamps[file.name] = stamps[file.name]
            self.sent += 1
            self._replace_journal(file)
            told(file)

        def failed(file: File, error: Exception) -> None:
            if file.path.exists():  # otherwise the journal became a part, or the user removed it
                self.failed[file.name] = self.target.place.why(error)

        with tempfile.TemporaryDirectory(prefix="rollouts-") as made:
            ready = {
                file.name: self._with_theirs(file, Path(made)) for file in files
            }  # the target may have other nodes' entries
            self.target.send(list(ready.values()), sent, failed)
        return all(self._stamps.get(file.name) == stamps[file.name] or not file.path.exists() for file in files)

    def _with_theirs(self, file: File, folder: Path) -> File:
        """Return a file that also has the entries that only the target has, from a lost disk or another node."""
        if file.name == NOTE:
            return self._with_joined(file, folder)
        return self._with_lost_attempts(file, folder) if is_facts(file.name) else file

    def _with_joined(self, file: File, folder: Path) -> File:
        if file.name in self._there and not (folder / NOTE).exists():
            self.target.fetch(file.name, folder / NOTE)
        record_joined_parts(folder, read_joined_parts(_root(file)))
        return File(folder / NOTE, NOTE, (folder / NOTE).stat().st_size)

    def _with_lost_attempts(self, file: File, folder: Path) -> File:
        content = with_attempts(file.path, self._attempts_there(file.name))
        made = folder / file.name
        if content:
            made.write_text(content, encoding="utf-8")
        self._earlier[file.name] = earlier_attempts(made if content else file.path)
        return File(made, file.name, made.stat().st_size) if content else file

    def _replace_journal(self, file: File) -> None:
        """Remove a journal when its part has arrived; both may be on their way at the same time."""
        journal, part = (str(Path(file.name).with_suffix(suffix)) for suffix in (".arrows", ".parquet"))
        if part in self._there and self._there.pop(journal, None) is not None:
            self.target.remove(journal)

    def safe_names(self, file: File) -> list[str]:
        """Return the names under which the target safely has the file's content; if some are missing, an empty list.

        The target may have the file as it is here, the file before it was pruned, or all parts that were joined into
        it.
        """
        there = self.target.size(file.name)
        if there is not None:
            return [file.name] if there == file.size or is_pruned(file.path) else []
        held = self._held_parts(file)
        return held if all(self.target.size(name) is not None for name in held) else []


def _starts(attempts: Iterable[Mapping[str, Any]]) -> dict[int | None, Any]:
    """Return the start time of each attempt."""
    return {as_count(attempt.get("attempt")): attempt.get("started") for attempt in attempts}


def _root(file: File) -> Path:
    """Return the folder of the run, or of one of its nodes, that contains the file."""
    return file.path.parents[file.name.count("/")]


def is_facts(name: str) -> bool:
    """Return True if a file of this name is a run file."""
    return bool(_FACTS.fullmatch(name))


def with_attempts(file: Path, earlier: list[dict[str, Any]]) -> str:
    """Return the text of a run file with the missing ones of these attempts added, or "" if none is missing."""
    listed_attempts = {attempt.get("attempt") for attempt in earlier_attempts(file)}
    lost = [attempt for attempt in earlier if attempt.get("attempt") not in listed_attempts]
    facts = json.loads(file.read_bytes()) if lost else {}
    return json.dumps({**facts, "attempts": [*lost, *facts["attempts"]]}, indent=1) if lost else ""


def _held(nodes: Iterable[Path]) -> Iterator[str]:
    """Yield the names of parts that were joined into others."""
    return chain.from_iterable(chain.from_iterable(read_joined_parts(node).values()) for node in nodes)


def run_folders(names: Iterable[str]) -> list[str]:
    """Return the folders of runs among files of these names; "" is the folder that contains them all."""
    return sorted({match[1].rstrip("/") for name in names if (match := _OF_A_RUN.fullmatch(name))})


def is_fixed(name: str) -> bool:
    """Return True if a file of this name never changes."""
    is_part = name.startswith(("data/", "steps/")) and name.endswith(".parquet")
    return is_part or name.startswith(("media/", "annotations/", "sessions/"))


def _rank(file: File) -> int:
    return next(number for number, start in enumerate(_ORDER) if file.name.startswith(start))


def _stamp(file: File) -> tuple[int, int]:
    with suppress(OSError):
        return file.size, file.path.stat().st_mtime_ns
    return file.size, 0


def parts_to_spare(files: list[File]) -> list[File]:
    """Return parts, oldest first, without the newest of each writer, which determines the number of the next."""
    parts = [
        (part[1], file) for file in files if file.name.endswith(".parquet") and (part := _PART.fullmatch(file.name))
    ]
    newest = {(file.path.parent, stem): file for stem, file in sorted(parts, key=lambda each: each[1].name)}
    newest_names = {file.name for file in newest.values()}
    return sorted(
        (file for _, file in parts if file.name not in newest_names), key=lambda file: (_stamp(file)[1], file.name)
    )
