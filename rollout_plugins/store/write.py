"""Write the rollouts of one rank of a run to an append-only journal that becomes Parquet as it grows.

`data/<split>/<attempt>-<rank>-<number>.arrows` is an Arrow IPC stream with a record batch for each generation, or
several for a generation of more than 16 MB. At 64 MB and at the end, it is sealed: written as a Parquet file of the
same name, and removed. Readers prefer the Parquet file. If the process is killed at any moment, at most the last batch
is truncated, and readers ignore it.
"""

from __future__ import annotations

import logging
import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rollout_hookspecs import Placeholder, Rollout, Run

from rollout_plugins.content.exact_json import to_tagged
from rollout_plugins.errors import RunError
from rollout_plugins.store import step_log, sums
from rollout_plugins.store.arrow_rollouts import to_batch
from rollout_plugins.store.deferred_tokens import DeferredTokens, without_tokens
from rollout_plugins.store.joined_parts import read_joined_parts
from rollout_plugins.store.run_facts import earlier_attempts
from rollout_plugins.store.schema import HEAVY, SCHEMA, VERSION
from rollout_plugins.system.file_locks import hold_lock
from rollout_plugins.system.files import replace_file, sync_to_disk

logger = logging.getLogger("rollout_plugins")

SEAL_BYTES = 64 * 2**20
#: The size at which the journal of the trainer's log is sealed; as Parquet, its rows take only a few bytes.
LOG_BYTES = 16 * 2**20
SYNC_SECONDS = 1.0
ROW_GROUP = 4096
#: How many bytes of rollouts are serialised, or turned into Parquet, at once; that many are in memory twice.
PIECE_BYTES = 16 * 2**20
_ANSWERS = tuple(f"completion.list.element.{name}" for name in ("content", "reasoning"))
BATCHES_AT_ONCE = 64
#: The minimum number of values in a Parquet page, which is held in memory several times.
TEXTS_AT_ONCE = 256
#: The average size of a row above which its texts need special treatment.
VAST_ROW = 2**20
#: The folder in which processes that may start the same run at once reserve their attempt numbers.
ATTEMPTS = ".attempts"
#: The first bytes of every message in a journal.
_MESSAGE = b"\xff" * 4


def run_file(rank: int) -> str:
    """Return the name of a rank's run file; rank 0's is the run's."""
    return "run.json" if rank == 0 else f"run-{rank:05d}.json"


class RunWriter:
    """Appends rollouts to a run. Methods raise OSError if the disk fails; the next call starts afresh."""

    def __init__(self, run: Run, seal_seconds: float | None = None) -> None:
        """`seal_seconds`: the age at which a journal is sealed; by default, only its size counts."""
        self.run = run
        self._seal_seconds = math.inf if seal_seconds is None else seal_seconds
        self.dir = Path(run.dir)
        self.lost: list[Placeholder] = []
        self.bytes = 0
        self.new_splits: set[str] = set()
        """The splits that got a new journal; the caller clears it."""
        self.keeps_last = False
        """Whether to set `last`."""
        self.last: pa.RecordBatch | None = None
        """The rows of the last write, for checks; the caller resets it to None."""
        self.deferred_tokens: DeferredTokens | None = None
        """Takes the tokens of rollouts, so that their rows have none."""
        self._shards: dict[str, Journal] = {}
        self._log: Journal | None = None
        self._started = time.time()

    def write(self, split: str, rollouts: Sequence[Rollout]) -> int:
        """Append one generation, and seal journals that are due."""
        count = self.append(split, rollouts)
        self.seal_due()
        return count

    def append(self, split: str, rollouts: Sequence[Rollout]) -> int:
        """Append one generation, and return how many rows were written.

        The rows are readable and survive this process. A smaller number than `len(rollouts)` means a defect here.
        """
        if not rollouts:
            return 0
        batch = self._rows(rollouts)
        if self.deferred_tokens is not None:
            batch = self.deferred_tokens.take(batch) if split == "train" else without_tokens(batch)
        count: int = batch.num_rows
        shard = self._shards.get(split)
        if shard is None or not shard.is_there():
            shard = self._new_shard(split)
        self.bytes += shard.append(_pieces(batch))
        _release(batch.nbytes)
        self.last = batch if self.keeps_last else None
        return count

    def seal_due(self) -> None:
        """Seal journals that are large or old enough.

        Sealing reads them again, so call it after releasing the rollouts.
        """
        for split, shard in list(self._shards.items()):
            if shard.bytes >= SEAL_BYTES or shard.age >= self._seal_seconds:
                self._seal(split)

    def _rows(self, rollouts: Sequence[Rollout]) -> pa.RecordBatch:
        """Convert rollouts to rows. If a defect here breaks one of them, only that rollout is lost."""
        lost_before = len(self.lost)
        try:
            return to_batch(rollouts, self.lost)
        except Exception as error:
            if len(rollouts) == 1:
                raise
            del self.lost[lost_before:]
            rows = [row for rollout in rollouts if (row := self._row(rollout)) is not None]
            if not rows:
                raise
            logger.warning(
                "%d of %d rollouts are lost, because no row could be made of them (%s in %s); please report this",
                len(rollouts) - len(rows),
                len(rollouts),
                type(error).__name__,  # not its text, which may quote a model's output
                traceback.extract_tb(error.__traceback__)[-1].name,
            )
        return pa.Table.from_batches(rows).combine_chunks().to_batches()[0]

    def _row(self, rollout: Rollout) -> pa.RecordBatch | None:
        with suppress(Exception):  # the caller counts this one too
            return to_batch([rollout], self.lost)
        return None

    def _new_shard(self, split: str) -> Journal:
        """Start a journal, even if the folder was removed meanwhile."""
        old = self._shards.pop(split, None)
        if old is not None:
            old.close()
        self._shards[split] = shard = self._new_journal(Path("data", split), SCHEMA)
        self.new_splits.add(split)
        return shard

    def _new_journal(self, name: Path, schema: pa.Schema) -> Journal:
        folder = self.dir / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (self.dir / run_file(self.run.rank)).exists():
            self.write_run()
        while True:
            try:
                return Journal(self._next_part(name).with_suffix(".arrows"), schema)
            except FileExistsError:  # another process that writes the same run was faster
                continue

    @property
    def stem(self) -> str:
        """The prefix of the names of this process's files."""
        return f"{self.run.attempt:03d}-{self.run.rank:05d}"

    def next_part(self, split: str) -> Path:
        """Return a path that no part of this process has had; with the name of a joined part, it would be ignored."""
        return self._next_part(Path("data", split))

    def _next_part(self, name: Path) -> Path:
        folder, start = self.dir / name, f"{name.as_posix()}/{self.stem}-"
        held = (
            Path(part) for parts in read_joined_parts(self.dir).values() for part in parts if part.startswith(start)
        )
        number = 1 + max(map(_number, (*folder.glob(f"{self.stem}-*.*"), *held)), default=-1)
        return folder / f"{self.stem}-{number:06d}.parquet"

    def write_log(self, step: int, time: float, values: Mapping[str, float | str]) -> None:
        """Append what the trainer logged at a step, in the same way as `write`."""
        if self._log is None or not self._log.is_there():
            if self._log is not None:
                self._log.close()
            self._log = self._new_journal(step_log.FOLDER, step_log.SCHEMA)
        self.bytes += self._log.append([step_log.to_rows(self.run, step, time, values)])
        if self._log.bytes >= LOG_BYTES:
            self._seal_log()

    def _seal_log(self) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        log.close()
        try:
            seal_log(log.path, log.rows)
        except Exception as error:
            logger.warning(
                "%s could not be converted to Parquet and remains a journal, which readers accept: %s", log.path, error
            )

    def _seal(self, split: str) -> None:
        """Turn a journal into Parquet. If that fails, the journal remains and stays readable."""
        shard = self._shards.pop(split)
        shard.close()
        try:
            seal(shard.path, shard.rows)
        except Exception as error:
            logger.warning(
                "%s could not be converted to Parquet and remains a journal, which readers accept: %s",
                shard.path,
                error,
            )

    def sync(self) -> None:
        """Flush written data to the disk, so that it survives a crash of the machine."""
        for journal in (*self._shards.values(), *filter(None, [self._log])):
            journal.sync()
        self.seal_due()

    def write_run(self, counts: Mapping[str, Any] | None = None, *, ended: bool = False) -> None:
        """Write this rank's facts and counts atomically."""
        run = {f.name: _listed(getattr(self.run, f.name)) for f in fields(Run) if f.name != "dir"}
        attempt = {
            "attempt": self.run.attempt,
            "resumed_from": self.run.resumed_from,
            "started": self._started,
            "ended": time.time() if ended else None,
            **(counts or {}),
        }
        file = self.dir / run_file(self.run.rank)
        self.dir.mkdir(parents=True, exist_ok=True)
        with self._in_turn():
            attempts = earlier_attempts(file)
            other_attempts = [a for a in attempts if a.get("attempt") != self.run.attempt]
            for earlier in (
                a for a in attempts if a.get("attempt") == self.run.attempt
            ):  # written again by this attempt
                attempt["started"] = earlier.get("started", self._started)
            facts = to_tagged({"schema": VERSION, **run, "attempts": [*other_attempts, attempt]})
            replace_file(file, lambda path: path.write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2)))

    def _in_turn(self) -> AbstractContextManager[None]:
        """Return a lock on the run file if other processes may write their attempts to it."""
        shared = self.dir / ATTEMPTS
        return hold_lock((shared / "lock").open("ab")) if shared.is_dir() else nullcontext()

    def close(self, counts: Mapping[str, Any] | None = None) -> None:
        """Seal every journal, and record the end."""
        for split in list(self._shards):
            self._seal(split)
        self._seal_log()
        self.write_run(counts, ended=True)


def _number(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class Journal:
    """A journal that is being written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.bytes = 0
        self.rows = 0
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        self._whole = True
        self._synced = 0.0
        self._began = time.monotonic()
        try:
            self._write(schema.serialize())
        except OSError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    def is_there(self) -> bool:
        """Return True if the path still names the open file; writes to a removed folder would be lost silently."""
        try:
            return self._whole and os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def append(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Append all of the batches or none, and return how many bytes that took."""
        before = self.bytes, self.rows
        try:
            for batch in batches:
                self._write(batch.serialize())
                self.rows += batch.num_rows
        except BaseException:
            self._truncate(*before)
            raise
        return self.bytes - before[0]

    def _write(self, buffer: pa.Buffer) -> None:
        view = memoryview(buffer)
        while view:
            view = view[os.write(self._fd, view) :]
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()
        self.bytes += buffer.size

    def _truncate(self, size: int, rows: int) -> None:
        """Truncate the journal to `size` bytes, because half a batch would hide the ones after it."""
        self.bytes, self.rows = size, rows
        try:
            os.ftruncate(self._fd, size)
        except OSError:
            self._whole = False  # so the next generation begins another journal

    def sync(self) -> None:
        self._synced = time.monotonic()
        sync_to_disk(self._fd)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)


def seal(journal: Path, rows: int) -> Path:
    """Turn a journal with this many rows into a Parquet part of the same name."""
    part = journal.with_suffix(".parquet")
    is_vast = journal.stat().st_size > VAST_ROW * max(rows, 1)

    def write(path: Path) -> None:
        written = 0
        with (
            pa.OSFile(str(journal)) as source,
            pa.ipc.open_stream(source) as stream,
            part_writer(path, stream.schema, is_vast=is_vast) as add,
        ):
            for table in row_groups(stream):
                add(table)
                written += table.num_rows
                # Release its memory before the file is finished.
                del table
        if written != rows:
            raise OSError(f"{written} of the {rows} rollouts in it can be read")

    replace_file(part, write)
    journal.unlink()
    return part


def seal_log(journal: Path, rows: int) -> None:
    """Turn a journal of the trainer's log into a Parquet file of the same name."""
    table = read_journal(journal)
    if table.num_rows != rows:
        raise OSError(f"{table.num_rows} of the {rows} rows in it can be read")
    write_parquet(journal.with_suffix(".parquet"), [table])
    journal.unlink()


@contextmanager
def part_writer(path: Path, schema: pa.Schema, *, is_vast: bool = False) -> Iterator[Callable[[pa.Table], None]]:
    """Open a part, yield a function that appends a row group, and at the end add the sums to its footer."""
    metadata = {name: value for name, value in (schema.metadata or {}).items() if name != sums.KEY}
    options = {"compression": "zstd", "compression_level": 1, **encodings(schema, is_vast=is_vast)}
    options["write_batch_size"] = TEXTS_AT_ONCE
    rows: list[pa.Table] = []

    def write(table: pa.Table) -> None:
        file.write_table(table)
        _release(table.nbytes)
        rows.append(sums.copy_columns(table))

    with pa.OSFile(str(path), "wb") as sink, pq.ParquetWriter(sink, schema.with_metadata(metadata), **options) as file:
        yield write
        pa.default_memory_pool().release_unused()
        file.add_key_value_metadata(sums.footer(rows, sink.tell()))


def encodings(schema: pa.Schema, *, is_vast: bool = False) -> dict[str, Any]:
    """Return Parquet encodings for the columns.

    A dictionary of log-probabilities would be larger than the values, but split by byte they compress well.
    Completions hardly ever repeat, so a dictionary is useless, and very large texts would be held in memory twice.
    Statistics of texts in lists are never used.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    split = [leaf for leaf in leaves if leaf.startswith("tokens.") and "logprobs" in leaf]
    plain = [leaf for leaf in leaves if "." not in leaf]
    light = [leaf for leaf in plain if leaf not in HEAVY]
    repeated = [leaf for leaf in leaves if leaf not in (*split, *_ANSWERS)]
    return {
        "use_dictionary": light if is_vast else repeated,
        "use_byte_stream_split": split,
        "write_statistics": [leaf for leaf in columns_with_statistics(schema) if not is_vast or leaf not in HEAVY],
    }


def columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the columns that get minimum and maximum statistics.

    Numbers with NaN do not: Parquet's maximum ignores NaN, and DuckDB would then treat NaN in the file as a number.
    """
    return [field.name for field in schema if not (pa.types.is_nested(field.type) or pa.types.is_floating(field.type))]


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the Parquet columns of one Arrow column."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path


def _release(size: int) -> None:
    """Return memory to the system after work on `size` bytes, because Arrow's allocator would keep as much again."""
    if size > PIECE_BYTES // 2:
        pa.default_memory_pool().release_unused()


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in pieces of about `PIECE_BYTES`, since a piece is copied to be written."""
    rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of at most `ROW_GROUP` rows, and of about `PIECE_BYTES` if the batches are small.

    Thousands of tiny batches side by side take ten times the memory of a large one.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        while rows >= ROW_GROUP:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, ROW_GROUP)
            waiting = table.slice(ROW_GROUP).to_batches()
            rows -= ROW_GROUP
            size = sum(rest.nbytes for rest in waiting)
        is_enough = size + batch.nbytes > PIECE_BYTES
        del batch  # free it before the next one is read
        if is_enough:
            table = pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
            yield table
            del table
        if len(waiting) >= BATCHES_AT_ONCE:
            waiting = pa.Table.from_batches(waiting).combine_chunks().to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting)


def read_journal(path: Path, breaks: Callable[[int, str], object] = lambda *_: None) -> pa.Table:
    """Return every complete batch of a journal; a truncated end, or one being written, is left out.

    `breaks` is called if the journal is damaged before its end, with the byte offset and the reason. The file is read
    and not mapped, because its writer may truncate or remove it.
    """
    batches: list[pa.RecordBatch] = []
    with pa.OSFile(str(path)) as source:
        size = source.size()
        try:
            stream = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            if _has_header(path):
                raise
            return SCHEMA.empty_table()  # its writer was killed before the first generation
        try:
            while True:
                read = source.tell()
                batches.append(stream.read_next_batch())
        except (StopIteration, pa.ArrowException, OSError, MemoryError) as error:
            if not _is_torn(source, read, size):
                breaks(read, str(error) or "the file goes on after the mark of its end")
        return pa.Table.from_batches(batches, schema=stream.schema)


def _is_torn(source: pa.OSFile, read: int, size: int) -> bool:
    """Return True if a journal ends within the message after these bytes, perhaps because its writer truncated it."""
    if source.tell() < min(size, os.fstat(source.fileno()).st_size):
        return False
    source.seek(read)
    start: bytes = source.read(4)
    return start == _MESSAGE[: len(start)]


def _has_header(path: Path) -> bool:
    """Return True if a journal contains its complete first message."""
    with path.open("rb") as file:
        start = file.read(8)
    return len(start) == 8 and path.stat().st_size >= 8 + int.from_bytes(start[4:], "little")


def write_parquet(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write tables to one Parquet file in order, and return the number of rows."""
    written = 0

    def write(target: Path) -> None:
        nonlocal written
        writer = None
        for table in tables:
            how = {"compression": "zstd", "write_statistics": columns_with_statistics(table.schema)}
            writer = writer or pq.ParquetWriter(target, table.schema, **how)
            writer.write_table(table.cast(writer.schema))
            written += table.num_rows
        if writer is None:
            raise RunError("no rollouts match, so there is nothing to write")
        writer.close()

    replace_file(path, write)
    return written
