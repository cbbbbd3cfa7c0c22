"""The run on disk, while it is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rollout_hookspecs import Rollout, Run

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.telling import shown
from rollout_plugins.store.annotations import write_texts
from rollout_plugins.store.write import RunWriter

logger = logging.getLogger("rollout_plugins")

T = TypeVar("T")

#: Rollouts of other ranks whose reasons are kept in memory before they are written.
CHOSEN_AT_ONCE = 10_000


class Storage:
    """Writes a run. It counts what a failing disk costs, says so once for each outage, and tries again every time."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._writer: RunWriter | None = None
        self._lost_in_outage: int | None = None
        self._chosen: list[dict[str, str]] = []
        self._noted: dict[str, dict[str, int]] = {}

    @property
    def bytes(self) -> int | None:
        """How much was written; None when no run is open."""
        return None if self._writer is None else self._writer.bytes

    def open(self, run: Run, seal_seconds: float | None = None) -> None:
        self._writer = RunWriter(run, seal_seconds)
        self._try(lambda writer: writer.write_run())

    def write(self, split: str, rollouts: Sequence[Rollout]) -> None:
        """Store one generation."""
        stored = self._try(lambda writer: writer.write(split, rollouts), len(rollouts))
        if stored is not None:
            self._counters.stored(split, stored)
            self._counters.drop("store_failed", len(rollouts) - stored)

    def note_chosen(self, chosen: Sequence[dict[str, str]]) -> None:
        """Why rollouts of other ranks went to sinks. Written now and then: few files, little memory."""
        self._chosen += chosen
        if len(self._chosen) >= CHOSEN_AT_ONCE:
            self._write_chosen()

    def _write_chosen(self) -> None:
        chosen, self._chosen = self._chosen, []
        self._try(lambda writer: write_texts(writer.dir, "selection", chosen))

    def sync(self) -> None:
        """Have the disk keep what there is."""
        self._try(lambda writer: writer.sync())
        self._try(lambda writer: writer.write_run(self._summary(writer)))

    def close(self) -> None:
        """End the run, if one is open."""
        if self._writer is not None:
            self._try(lambda writer: writer.close(self._summary(writer)))
            if self._chosen:
                self._write_chosen()

    def forget(self) -> None:
        """Let go of a closed run, and note in it what was counted since, such as what a sink got wrong at the end."""
        if self._writer is not None and self._counters.counted() != self._noted:
            self._try(lambda writer: writer.write_run(self._summary(writer), ended=True))
        self._writer = None

    def _summary(self, writer: RunWriter) -> dict[str, Any]:
        """What run.json says of the attempt."""
        self._noted = self._counters.counted()
        return {**self._noted, **self._counters.costs(), "bytes_written": writer.bytes}

    def _try(self, write: Callable[[RunWriter], T], count: int = 0) -> T | None:
        """Write `count` rollouts, or a file beside them; None if that failed."""
        writer = self._writer
        try:
            if writer is None:
                raise RuntimeError("the run could not be opened")  # noqa: TRY301 - counted like any other loss
            result = write(writer)
        except Exception as error:
            self._note_outage(error, count)
            return None
        if self._lost_in_outage is not None and count:  # only rollouts tell: a full disk still takes small files
            logger.warning(
                "writing to %s works again; %d rollouts were lost meanwhile", writer.dir, self._lost_in_outage
            )
            self._lost_in_outage = None
        if writer.lost:
            self._counters.drop("unserialisable_field", len(writer.lost))
            writer.lost.clear()
        return result

    def _note_outage(self, error: Exception, count: int) -> None:
        self._counters.drop("store_failed", count)
        if self._lost_in_outage is None:
            self._lost_in_outage = 0
            where = self._writer.dir if self._writer else "the run's folder"
            logger.warning("cannot write to %s: %s; rollouts are lost until this is fixed", where, shown(error))
        self._lost_in_outage += count
