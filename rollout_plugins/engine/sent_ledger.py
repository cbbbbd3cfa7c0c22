"""Record which rollouts a target has received, and let only one process at a time send to it."""

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
    """The ids of the rollouts that one target has received, in an append-only file in the run's folder."""

    def __init__(self, folder: Path, target: str) -> None:
        kind = re.sub(r"[^a-z0-9]+", "-", target.partition(":")[0].lower()) or "sink"
        self.path = folder / "exports" / f"{kind[:64]}-{hashlib.sha256(target.encode()).hexdigest()[:12]}.txt"
        self.target = target
        self._read_bytes = 0
        self._presence: IO[Any] | None = None

    def read_new(self) -> set[str]:
        """Return the ids that other processes appended since the last call.

        A line that a crash truncated is ignored, so that rollout is sent again.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return set()
        complete = [line for line in lines if line.endswith(b"\n")]
        self._read_bytes += sum(map(len, complete))
        return {line.decode(errors="replace").rstrip("\n") for line in complete if not line.startswith(b"#")}

    def add(self, ids: Iterable[str]) -> None:
        """Append the ids of rollouts that the target has received."""
        with self._open(self.path) as file:
            header = "" if file.tell() else f"# {self.target}\n"
            file.write(
                (_missing_line_break(self.path) + header + "".join(f"{rollout_id}\n" for rollout_id in ids)).encode()
            )
            file.flush()
            sync_to_disk(file.fileno())
            self._read_bytes = file.tell()

    @contextmanager
    def turn(self, patience: float = math.inf) -> Iterator[None]:
        """Hold the right to send to this target. In a folder that is not writable, everybody may send."""
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
                    f"{holder} has been sending to {self.target} for {patience:g} s: wait until it "
                    "finishes or end it, then export again"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def enter(self) -> None:
        """Announce that this process is about to send, until `leave` or the end of the process."""
        with suppress(OSError):
            self._presence = self._open(self.path)
            lock(self._presence, shared=True)

    def is_alone(self) -> bool:
        """Return whether no other process is about to send."""
        if self._presence is None:
            return False
        alone = lock(self._presence, wait=False)
        lock(self._presence, shared=True)  # the attempt above released it
        return alone

    def leave(self) -> None:
        if self._presence is not None:
            unlock(self._presence)
            self._presence = None

    def _open(self, path: Path) -> IO[bytes]:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def _missing_line_break(path: Path) -> str:
    """Return a line break if a crash left the last line without one."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return ""
        file.seek(-1, os.SEEK_END)
        return "" if file.read() == b"\n" else "\n"
