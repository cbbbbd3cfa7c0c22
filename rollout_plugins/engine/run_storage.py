"""Write a run to disk while it is recorded, and survive a disk that fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from rollout_hookspecs import Rollout, Run

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.error_text import error_text
from rollout_plugins.store.annotations import write_texts
from rollout_plugins.store.deferred_tokens import DeferredTokens
from rollout_plugins.store.small_parts import join_small_parts
from rollout_plugins.store.write import RunWriter

logger = logging.getLogger("rollout_plugins")

T = TypeVar("T")

#: How many reasons for selections of other ranks' rollouts are collected before they are written.
SELECTION_BATCH = 10_000


class Storage:
    """Writes a run. Counts what a failing disk loses, warns once for each outage, and retries with every write."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._writer: RunWriter | None = None
        self._joins = True
        self._lost_in_outage: int | None = None
        self._selection: list[dict[str, str]] = []
        self._written_counts: dict[str, dict[str, int]] = {}
        self._run_file_lock = threading.RLock()
        self._is_closed = False

    @property
    def bytes(self) -> int | None:
        """Bytes written; None if no run is open."""
        return None if self._writer is None else self._writer.bytes

    def open(self, run: Run, seal_seconds: float | None = None) -> None:
        self._writer, self._is_closed = RunWriter(run, seal_seconds), False
        self._joins = True
        self._try(lambda writer: writer.write_run())

    def write(self, split: str, rollouts: Sequence[Rollout]) -> None:
        """Store one generation."""
        stored = self._try(lambda writer: writer.append(split, rollouts), len(rollouts))
        if stored is not None:
            self._counters.stored(split, stored)
            self._counters.drop("store_failed", len(rollouts) - stored)

    def seal_due(self) -> None:
        """Seal what is large or old enough, and join small parts. Call it when the rollouts are out of memory."""
        if self._writer is not None and not self._is_closed:
            self._try(lambda writer: writer.seal_due())
            self._join_small_parts()

    def defer_tokens(self) -> None:
        """Keep tokens in memory, and store none, until `write_deferred_tokens`."""
        if self._writer is not None:
            self._writer.deferred_tokens = DeferredTokens()

    def discard_tokens(self, last_step: int) -> None:
        """Release the tokens of generations that began at `last_step` or earlier."""
        if self._writer is not None and self._writer.deferred_tokens is not None:
            self._writer.deferred_tokens.discard(last_step)

    def write_deferred_tokens(self, step: int) -> tuple[list[int], int]:
        """Store the tokens in memory; return the steps that they are of, and how many rollouts no longer had any."""
        writer = self._writer
        if writer is None or (tokens := writer.deferred_tokens) is None:
            return [], 0
        return self._try(lambda writer: tokens.write(writer.dir, writer.stem, step)) or [], tokens.dropped

    def keep_last(self) -> None:
        """Keep the rows that are written last until `take_last`."""
        if self._writer is not None:
            self._writer.keeps_last = True

    def take_last(self) -> pa.RecordBatch | None:
        """Return the rows that were written since the last call; None if writing them failed."""
        writer = self._writer
        if writer is None:
            return None
        batch, writer.last = writer.last, None
        return batch

    def _join_small_parts(self) -> None:
        """Join small files of a run that is sealed often. If that fails, they stay separate."""
        writer = self._writer
        if writer is None or not self._joins:
            return
        try:
            while writer.new_splits:
                split = writer.new_splits.pop()
                while join_small_parts(writer.dir, split, writer.stem, writer.next_part(split)):
                    pass
        except Exception as error:
            self._joins = False
            logger.warning(
                "cannot join the small files of %s, so reading it takes longer: %s", writer.dir, error_text(error)
            )

    def write_log(self, step: int, time: float, values: Mapping[str, float | str]) -> None:
        """Store what the trainer logged at a step."""
        self._try(lambda writer: writer.write_log(step, time, values))

    def note_selection(self, selection: Sequence[dict[str, str]]) -> None:
        """Record why rollouts of other ranks were selected. Written in batches, for few files and little memory."""
        self._selection += selection
        if len(self._selection) >= SELECTION_BATCH:
            self._write_selection()

    def _write_selection(self) -> None:
        selection, self._selection = self._selection, []
        self._try(lambda writer: write_texts(writer.dir, "selection", selection))

    def sync(self) -> None:
        """Flush what is recorded to disk."""
        self._try(lambda writer: writer.sync())
        with self._run_file_lock:
            self._try(lambda writer: writer.write_run(self._summary(writer)))

    def close(self) -> None:
        """End the run, if one is open."""
        if self._writer is not None:
            with self._run_file_lock:
                self._is_closed = True
                self._try(lambda writer: writer.close(self._summary(writer)))
            if self._selection:
                self._write_selection()

    def forget(self) -> None:
        """Release a closed run, and write what was counted since, such as what a sink missed at the end."""
        if self._writer is not None and self._counters.counted() != self._written_counts:
            with self._run_file_lock:
                self._try(lambda writer: writer.write_run(self._summary(writer), ended=True))
        self._writer = None

    def write_counts(self) -> None:
        """Write the counts of a run that is still open, from any thread: the worker may not return before the exit."""
        with self._run_file_lock:
            if self._writer is not None and not self._is_closed:
                self._writer.write_run({**self._counters.counted(), **self._counters.costs()})

    def _summary(self, writer: RunWriter) -> dict[str, Any]:
        """Return what run.json has of the attempt."""
        self._written_counts = self._counters.counted()
        return {**self._written_counts, **self._counters.costs(), "bytes_written": writer.bytes}

    def _try(self, write: Callable[[RunWriter], T], count: int = 0) -> T | None:
        """Write `count` rollouts, or another file; return None if that failed."""
        writer = self._writer
        try:
            if writer is None:
                raise RuntimeError("the run could not be opened")  # noqa: TRY301 - counted like any other loss
            result = write(writer)
        except Exception as error:
            self._count_outage(error, count)
            return None
        if self._lost_in_outage is not None and count:
            logger.warning(
                "writing to %s works again; %d rollouts were lost meanwhile", writer.dir, self._lost_in_outage
            )
            self._lost_in_outage = None
        if writer.lost:
            self._counters.drop("unserialisable_field", len(writer.lost))
            writer.lost.clear()
        return result

    def _count_outage(self, error: Exception, count: int) -> None:
        self._counters.drop("store_failed", count)
        if self._lost_in_outage is None:
            self._lost_in_outage = 0
            folder = self._writer.dir if self._writer else "the run's folder"
            logger.warning(
                "cannot write to %s: %s; rollouts are lost until the cause is fixed", folder, error_text(error)
            )
        self._lost_in_outage += count
