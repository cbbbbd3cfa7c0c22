"""Which rollouts a sink has been sent, so that none is sent twice to the same place."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path


class Ledger:
    """Ids of the rollouts that one target has received, in a file of the run's folder. Append-only."""

    def __init__(self, folder: Path, target: str) -> None:
        kind = re.sub(r"[^a-z0-9]+", "-", target.partition(":")[0].lower()) or "sink"
        self.path = folder / "exports" / f"{kind}-{hashlib.sha256(target.encode()).hexdigest()[:12]}.txt"
        self._target = target

    def read(self) -> set[str]:
        """All ids sent so far. A line torn by a crash is an id that is sent again."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError:
            return set()
        return {line.rstrip("\n") for line in lines if line.endswith("\n") and not line.startswith("#")}

    def add(self, ids: Iterable[str]) -> None:
        """Note what was sent, once the sink has it. Standard output keeps nothing, so nothing is noted of it."""
        if self._target.endswith(":-"):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = "" if self.path.exists() else f"# {self._target}\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(head + "".join(f"{ident}\n" for ident in ids))
            file.flush()
            os.fsync(file.fileno())
