"""Which rollouts a target was sent, and whose turn it is to send."""

from __future__ import annotations

import hashlib
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rollout_plugins.errors import RunError
from rollout_plugins.system.file_locks import lock, unlock
from rollout_plugins.system.files import sync_to_disk


class Ledger:
    """Ids of the rollouts that one target has received, in a file of the run's folder. Append-only."""

    def __init__(self, folder: Path, target: str) -> None:
        kind = re.sub(r"[^a-z0-9]+", "-", target.partition(":")[0].lower()) or "sink"
        self.path = folder / "exports" / f"{kind[:64]}-{hashlib.sha256(target.encode()).hexdigest()[:12]}.txt"
        self.target = target
        self._seen = 0
        self._presence: IO[Any] | None = None

    def news(self) -> set[str]:
        """The ids noted since the last look, by others. A line torn by a crash is an id that is sent again."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._seen)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return set()
        whole = [line for line in lines if line.endswith(b"\n")]
        self._seen += sum(map(len, whole))
        return {line.decode(errors="replace").rstrip("\n") for line in whole if not line.startswith(b"#")}

    def add(self, ids: Iterable[str]) -> None:
        """Note what was sent, once the target has it."""
        with self._open(self.path) as file:
            head = "" if file.tell() else f"# {self.target}\n"
            file.write((_torn(self.path) + head + "".join(f"{ident}\n" for ident in ids)).encode())
            file.flush()
            sync_to_disk(file.fileno())
            self._seen = file.tell()

    @contextmanager
    def turn(self, patience: float = math.inf) -> Iterator[None]:
        """Nobody else sends to this target meanwhile. A folder that cannot be written to has no turns."""
        try:
            file = self._open(self.path.with_suffix(".lock"))
        except OSError:
            yield
            return
        try:
            self._wait(file, patience)
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
            yield
        finally:
            unlock(file)

    def _wait(self, file: IO[Any], patience: float) -> None:
        until, pause = time.monotonic() + patience, 0.001
        while not lock(file, wait=False):
            if time.monotonic() > until:
                file.seek(0)
                holder = file.read().decode(errors="replace") or "another process"
                raise RunError(
                    f"{holder} has been sending to {self.target} for {patience:g} s: wait until it has finished, "
                    "or end it, and export again"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def enter(self) -> None:
        """Say that we are about to send; ends with `leave`, or with the process."""
        with suppress(OSError):
            self._presence = self._open(self.path)
            lock(self._presence, shared=True)

    def is_alone(self) -> bool:
        """Whether nobody else is about to send."""
        if self._presence is None:
            return False
        alone = lock(self._presence, wait=False)
        lock(self._presence, shared=True)  # asking for more gave up what we had
        return alone

    def leave(self) -> None:
        if self._presence is not None:
            unlock(self._presence)
            self._presence = None

    def _open(self, path: Path) -> IO[bytes]:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def _torn(path: Path) -> str:
    """A line break, if a crash has left a line without one."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return ""
        file.seek(-1, os.SEEK_END)
        return "" if file.read() == b"\n" else "\n"
