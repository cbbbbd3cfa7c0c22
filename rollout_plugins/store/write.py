"""Write one run, one rank: an append-only journal that turns into Parquet as it grows.

`data/<split>/<attempt>-<rank>-<number>.arrows` is an Arrow IPC stream with one record batch for each generation.
At 64 MB and at the end it becomes `….parquet` of the same name and is removed; a reader prefers the Parquet of the
two. Killing the process at any moment leaves at worst a torn last batch, which readers ignore.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rollout_hookspecs import Placeholder, Rollout, Run

from rollout_plugins.store.codec import placeholder_for, tagged
from rollout_plugins.store.schema import VERSION, schema, to_batch

logger = logging.getLogger("rollout_plugins")

SEAL_BYTES = 64 * 2**20
SYNC_SECONDS = 1.0
ROW_GROUP = 4096


def run_file(rank: int) -> str:
    """Each rank keeps its own facts and counts; rank 0's file is the run's."""
    return "run.json" if rank == 0 else f"run-{rank:05d}.json"


class RunWriter:
    """Appends rollouts to a run. Methods raise OSError when the disk does; the next call starts afresh."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.dir = Path(run.dir)
        self.lost: list[Placeholder] = []
        self._schema = schema(run.reward_names)
        self._shards: dict[str, _Shard] = {}
        self._attempts = [a for a in _earlier(self.dir / run_file(run.rank)) if a.get("attempt") != run.attempt]
        self._started = time.time()
        self.bytes = 0

    def write(self, split: str, rollouts: Sequence[Rollout]) -> None:
        """Append one generation. It is readable, and safe from this process's death, when this returns."""
        if not rollouts:
            return
        batch = self._batch(rollouts)
        shard = self._shards.get(split)
        if shard is None or not shard.is_there():
            shard = self._new_shard(split)
        shard.append(batch)
        self.bytes += batch.nbytes
        if shard.bytes >= SEAL_BYTES:
            self._seal(split)

    def _batch(self, rollouts: Sequence[Rollout]) -> pa.RecordBatch:
        try:
            return to_batch(rollouts, self._schema, self.lost)
        except Exception:
            logger.debug("a rollout could not be stored as it is", exc_info=True)
            return to_batch([self._bearable(rollout) for rollout in rollouts], self._schema, self.lost)

    def _bearable(self, rollout: Rollout) -> Rollout:
        """The rollout, with placeholders for the fields that no column can take."""
        for field in fields(Rollout):
            try:
                to_batch([replace(_BLANK, **{field.name: getattr(rollout, field.name)})], self._schema, [])
            except Exception as error:
                value = placeholder_for(getattr(rollout, field.name), field.name, f"raised {type(error).__name__}")
                self.lost.append(value)
                marks = {**_BLANK.marks, f"lost:{field.name}": str(value)}
                rollout = replace(rollout, **{field.name: getattr(_BLANK, field.name)})
                rollout = replace(rollout, marks={**(rollout.marks or {}), **marks})
        return rollout

    def _new_shard(self, split: str) -> _Shard:
        """Start a journal; also when the directory vanished under us, so that recording goes on."""
        old = self._shards.pop(split, None)
        if old is not None:
            old.close()
        folder = self.dir / "data" / split
        folder.mkdir(parents=True, exist_ok=True)
        if not (self.dir / run_file(self.run.rank)).exists():
            self.write_run()
        stem = f"{self.run.attempt:03d}-{self.run.rank:05d}"
        number = 1 + max((int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{stem}-*.*")), default=-1)
        shard = self._shards[split] = _Shard(folder / f"{stem}-{number:06d}.arrows", self._schema)
        return shard

    def _seal(self, split: str) -> None:
        """Turn a journal into Parquet. When that fails the journal stays, and stays readable."""
        shard = self._shards.pop(split)
        shard.close()
        try:
            seal(shard.path)
        except Exception as error:
            logger.warning("%s stays a journal, which readers accept: %s", shard.path, error)

    def sync(self) -> None:
        """Ask the disk to keep what was written even if the machine dies."""
        for shard in self._shards.values():
            shard.sync()

    def write_run(self, counts: Mapping[str, Any] | None = None, *, ended: bool = False) -> None:
        """Write this rank's facts and counts, atomically."""
        run = {f.name: _listed(getattr(self.run, f.name)) for f in fields(Run) if f.name != "dir"}
        attempt = {
            "attempt": self.run.attempt,
            "resumed_from": self.run.resumed_from,
            "started": self._started,
            "ended": time.time() if ended else None,
            **(counts or {}),
        }
        text = json.dumps(tagged({"schema": VERSION, **run, "attempts": [*self._attempts, attempt]}), indent=1)
        self.dir.mkdir(parents=True, exist_ok=True)
        replace_file(self.dir / run_file(self.run.rank), lambda path: path.write_text(text, encoding="utf-8"))

    def close(self, counts: Mapping[str, Any] | None = None) -> None:
        """Seal every journal and note the end."""
        for split in list(self._shards):
            self._seal(split)
        self.write_run(counts, ended=True)


_BLANK = Rollout(id="")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class _Shard:
    """One journal being written."""

    def __init__(self, path: Path, target: pa.Schema) -> None:
        self.path = path
        self.bytes = 0
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        self._synced = 0.0
        try:
            self._write(target.serialize())
        except OSError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    def is_there(self) -> bool:
        """Whether the path still names the file we write to; a removed folder would swallow writes in silence."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def append(self, batch: pa.RecordBatch) -> None:
        self._write(batch.serialize())
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def _write(self, buffer: pa.Buffer) -> None:
        view = memoryview(buffer)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, self.bytes)  # a half-written batch would hide the ones after it
            raise
        self.bytes += buffer.size

    def sync(self) -> None:
        self._synced = time.monotonic()
        os.fsync(self._fd)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)


def seal(journal: Path) -> Path:
    """Turn a journal into a Parquet part of the same name."""
    part = journal.with_suffix(".parquet")
    table = read_journal(journal)

    def write(path: Path) -> None:
        pq.write_table(table, path, compression="zstd", compression_level=1, row_group_size=ROW_GROUP)

    replace_file(part, write)
    journal.unlink()
    return part


def read_journal(path: Path) -> pa.Table:
    """Every whole batch of a journal; a torn end, or one that is being written, is left out."""
    batches = []
    with pa.memory_map(str(path)) as source:
        stream = pa.ipc.open_stream(source)
        while True:
            try:
                batches.append(stream.read_next_batch())
            except (StopIteration, pa.ArrowInvalid, OSError):
                break
        return pa.Table.from_batches(batches, schema=stream.schema)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that it is either the old one or the new one, whole, whenever the power goes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _earlier(path: Path) -> list[dict[str, Any]]:
    """Attempts that an earlier process noted in its run file."""
    try:
        attempts = json.loads(path.read_text(encoding="utf-8"))["attempts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return attempts if isinstance(attempts, list) else []
