"""What of a run's folder another folder lacks, and bringing it there: each file once, whoever is killed meanwhile.

Parts, media and annotations never change once they have their name, so what the other folder has under that name and
of that size is there already. Other files, the run's facts among them, are sent again when they have changed; what
only the other folder knows, of other nodes and of disks that are gone, stays in them.
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
#: Rollouts come after the pictures in them and the note of what a part holds, and the facts that count them last.
_ORDER = (NOTE, "media/", "data/", "steps/", "annotations/", "")


class Copying:
    """From a run's folder to another one."""

    def __init__(
        self,
        source: Path,
        target: Folder,
        *,
        idle_seconds: float = 0.0,
        journals: bool = True,
        send_joined: bool = True,
    ) -> None:
        """`idle_seconds`: how long a journal must have stayed as it is to be copied before it is a part, if at all.

        `send_joined`: whether to send a joined part if the target has all parts in it; that makes reading faster.
        """
        self.target = target
        self.failed: dict[str, str] = {}
        """Files that the last `send` could not bring there, and why."""
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
        """To the folder of the same name in `parent`, or to `<name>-2` where that is another run's, and so on."""
        number, name = 1, source.name
        while True:
            copying = cls(source, parent.inside(name), **options)
            if not copying.is_of_another_run(attempt, rank):
                return copying
            number += 1
            name = f"{source.name}-{number}"

    def is_of_another_run(self, attempt: int, rank: int) -> bool:
        """Whether the other folder has files under names of ours that are not ours: a run id was given twice."""
        ours = [file.name for file in files_of(self._source) if _PART.fullmatch(file.name)]
        stem = f"{attempt:03d}-{rank:05d}"
        nodes = nodes_of(self._source)
        gone = (*chain.from_iterable(map(relocated_urls, nodes)), *_held(nodes))
        known = {Path(name).with_suffix("") for name in (*ours, *gone)}
        complete = {Path(name).with_suffix("") for name in (*filter(is_fixed, ours), *gone)}
        made = [name for name in self._there if (part := _PART.fullmatch(name)) and part[1] == stem]
        # A part that is complete there and still grows here is not ours.
        foreign = (name for name in made if Path(name).with_suffix("") not in (complete if is_fixed(name) else known))
        return self.differs() or any(foreign) or self._began_otherwise(run_file(rank))

    def differs(self) -> bool:
        """Whether a part is there that has our name, and is not ours."""
        parts = [file for file in files_of(self._source) if _PART.fullmatch(file.name) and is_fixed(file.name)]
        others = [file for file in parts if self._there.get(file.name, file.size) != file.size]
        return not all(is_pruned(file.path) for file in others)

    def _began_otherwise(self, name: str) -> bool:
        """Whether an attempt that both folders know of began at one moment here, and at another there."""
        there = _starts(self._attempts_there(name))
        ours = [attempt for node in nodes_of(self._source) for attempt in earlier_attempts(node / name)]
        return any(there.get(attempt, start) != start for attempt, start in _starts(ours).items())

    def _attempts_there(self, name: str) -> list[dict[str, Any]]:
        """Those that a run file of the other folder lists, as it was when it was first looked at or sent."""
        if name not in self._earlier:
            with tempfile.TemporaryDirectory(prefix="rollouts-") as made:
                if name in self._there:
                    self.target.fetch(name, Path(made, name))
                self._earlier[name] = earlier_attempts(Path(made, name))
        return self._earlier[name]

    def pending(self, *, everything: bool = False) -> list[File]:
        """What is not there, in the order in which it may go; with `everything`, also journals that still grow."""
        found = [file for file in files_of(self._source) if self._lacks(file) and (everything or self._rests(file))]
        return sorted(found, key=lambda file: (_rank(file), file.name))

    def _lacks(self, file: File) -> bool:
        if is_fixed(file.name):
            return file.name not in self._there and not self._has_more(file)
        if file.name.endswith(".arrows") and not self._has_journals:
            return False
        return self._stamps.get(file.name) != _stamp(file)

    def _has_more(self, file: File) -> bool:
        """Whether the other folder has the parts that a joined one was made of, and that is enough, or more."""
        held = self._held_parts(file)
        is_enough = not self._has_joined or is_pruned(file.path) if held else False
        return is_enough and self._there.keys() >= set(held)

    def _held_parts(self, file: File) -> list[str]:
        """The names of the parts that a joined one holds, as they were written; none of one that was not joined."""
        if not file.name.startswith("data/"):
            return []
        notes = read_joined_parts(_root(file))
        return [name for name in notes.get(file.name, ()) if name not in notes]

    def _rests(self, file: File) -> bool:
        """Whether nobody has written to a journal for a while, by a clock that nobody sets."""
        if not file.name.endswith(".arrows"):
            return True
        size, since = self._journals.get(file.name, (-1, 0.0))
        if size != file.size:
            self._journals[file.name] = file.size, time.monotonic()
            return self._idle <= 0
        return time.monotonic() - since >= self._idle

    def send(self, files: list[File], told: Callable[[File], object] = lambda _: None) -> bool:
        """Bring them there; whether all of them are."""
        self.failed = {}
        stamps = {file.name: _stamp(file) for file in files}

        def sent(file: File) -> None:
            self._there[file.name] = file.size
            self._stamps[file.name] = stamps[file.name]
            self.sent += 1
            self._replace_journal(file)
            told(file)

        def failed(file: File, error: Exception) -> None:
            if file.path.exists():  # else it was a journal that became a part, or the user removed it
                self.failed[file.name] = self.target.place.why(error)

        with tempfile.TemporaryDirectory(prefix="rollouts-") as made:
            ready = {file.name: self._with_theirs(file, Path(made)) for file in files}  # one of several nodes' own
            self.target.send(list(ready.values()), sent, failed)
        return all(self._stamps.get(file.name) == stamps[file.name] or not file.path.exists() for file in files)

    def _with_theirs(self, file: File, folder: Path) -> File:
        """A file that also says what only the other folder knows of: this disk is a new one, or one of several."""
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
        self._earlier[file.name] = earlier_attempts(made if content else file.path)  # the next node's may lack them
        return File(made, file.name, made.stat().st_size) if content else file

    def _replace_journal(self, file: File) -> None:
        """A journal goes when its part is there, whichever of the two arrived last: both may be on their way."""
        journal, part = (str(Path(file.name).with_suffix(suffix)) for suffix in (".arrows", ".parquet"))
        if part in self._there and self._there.pop(journal, None) is not None:
            self.target.remove(journal)

    def safe_names(self, file: File) -> list[str]:
        """The names under which the other folder has what is in the file; it is asked, and if it lacks some: none.

        That is the file as it is here, or as it was before it was pruned, or all the parts that were joined into it.
        """
        there = self.target.size(file.name)
        if there is not None:
            return [file.name] if there == file.size or is_pruned(file.path) else []
        held = self._held_parts(file)
        return held if all(self.target.size(name) is not None for name in held) else []


def _starts(attempts: Iterable[Mapping[str, Any]]) -> dict[int | None, Any]:
    """When they began."""
    return {as_count(attempt.get("attempt")): attempt.get("started") for attempt in attempts}


def _root(file: File) -> Path:
    """The folder of the run, or of one of its nodes, that the file is in."""
    return file.path.parents[file.name.count("/")]


def is_facts(name: str) -> bool:
    """Whether a file of this name says what a rank did in its attempts."""
    return bool(_FACTS.fullmatch(name))


def with_attempts(file: Path, earlier: list[dict[str, Any]]) -> str:
    """The text of a run file with those of these attempts that it lacks; empty when it lacks none."""
    known = {attempt.get("attempt") for attempt in earlier_attempts(file)}
    lost = [attempt for attempt in earlier if attempt.get("attempt") not in known]
    facts = json.loads(file.read_bytes()) if lost else {}
    return json.dumps({**facts, "attempts": [*lost, *facts["attempts"]]}, indent=1) if lost else ""


def _held(nodes: Iterable[Path]) -> Iterator[str]:
    """Parts that were joined into others."""
    return chain.from_iterable(chain.from_iterable(read_joined_parts(node).values()) for node in nodes)


def run_folders(names: Iterable[str]) -> list[str]:
    """The folders among files of these names that are runs; empty text for the folder that all are in."""
    return sorted({found[1].rstrip("/") for name in names if (found := _OF_A_RUN.fullmatch(name))})


def is_fixed(name: str) -> bool:
    """Whether a file of this name never changes."""
    is_part = name.startswith(("data/", "steps/")) and name.endswith(".parquet")
    return is_part or name.startswith(("media/", "annotations/", "sessions/"))


def _rank(file: File) -> int:
    return next(number for number, start in enumerate(_ORDER) if file.name.startswith(start))


def _stamp(file: File) -> tuple[int, int]:
    with suppress(OSError):
        return file.size, file.path.stat().st_mtime_ns
    return file.size, 0


def parts_to_spare(files: list[File]) -> list[File]:
    """Parts, oldest first, without the newest of each writer: the next one is numbered after it."""
    parts = [
        (part[1], file) for file in files if file.name.endswith(".parquet") and (part := _PART.fullmatch(file.name))
    ]
    newest = {(file.path.parent, stem): file for stem, file in sorted(parts, key=lambda each: each[1].name)}
    kept = {file.name for file in newest.values()}
    return sorted((file for _, file in parts if file.name not in kept), key=lambda file: (_stamp(file)[1], file.name))
