"""Deliver rollouts to one sink, during training and from the store: each once, even if several processes send."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, cast

from rollout_hookspecs import Sink

from rollout_plugins.engine.sent_ledger import Ledger
from rollout_plugins.system.warn_once import Once

logger = logging.getLogger("rollout_plugins")

Export = Callable[[Collection[str]], object]


class Delivered(NamedTuple):
    """The result of a delivery: how many rollouts were sent, and how many the target already had."""

    sent: int
    had: int
    foreign_id: str = ""
    """An id that the sink returned although it did not receive that rollout."""
    unconfirmed: int = 0
    """How many of the sent rollouts are unconfirmed because `export_traces` returned None."""


class _Defaults(Sink):
    """The attributes of a sink that defines none."""


_DEFAULTS = _Defaults()
#: Attributes that decide how a run is recorded. If reading one raises, its default is used.
_SETTINGS = ("scope", "seal_seconds", "require_redact", "report_to")
_once = Once()


class _WithDefaults:
    """A plugin with the contract's defaults for the members it lacks."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(self._plugin, name, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if name not in _SETTINGS:
                raise
            kind = type(self._plugin)
            _once.warn("%s.%s raised %s; its default is used", kind.__name__, name, type(error), about=(kind, name))
            value = None
        return getattr(_DEFAULTS, name) if value is None else value


def as_sink(plugin: Any) -> Sink:
    """Return the plugin with every member that a sink may have."""
    return cast("Sink", _WithDefaults(plugin))


class Delivery:
    """Sends a run's rollouts to a sink, and records which. A sink without a target receives all of them every time."""

    def __init__(self, plugin: Any, folder: Path, *, patience: float = math.inf) -> None:
        self.folder = folder
        self._sink = as_sink(plugin)
        self._patience = patience
        self._ledger: Ledger | None = None
        self._received: set[str] = set()

    @property
    def target(self) -> str | None:
        """The destination of the rollouts; None for standard output, which stores nothing."""
        target = self._sink.target
        return target if target and isinstance(target, str) and not target.endswith(":-") else None

    def query_received(self) -> None:
        """Find out which rollouts the target has: ask the target if that is possible, otherwise read the ledger."""
        ledger = self._open_ledger()
        if ledger is None:
            return
        with ledger.turn(self._patience):
            in_ledger = ledger.read_new()
            received = self._sink.received()
            # While another process sends, rollouts in the ledger may not have arrived yet.
            self._received = (
                in_ledger if received is None else {*received} | (set() if ledger.is_alone() else in_ledger)
            )

    def send(self, ids: Sequence[str], export: Export) -> Delivered:
        """Send the rollouts that the target does not have."""
        ledger = self._open_ledger()
        if ledger is None:
            returned = export(ids)
            return _delivered(ids, returned, had=0)
        with ledger.turn(self._patience):
            self._received |= ledger.read_new()
            new = [rollout_id for rollout_id in ids if rollout_id not in self._received]
            returned = export(new) if new else ()
            arrived = _arrived(new, returned)
            self._record(ledger, arrived)
        return _delivered(new, returned, had=len(ids) - len(new))

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.leave()
            self._ledger = None

    def _open_ledger(self) -> Ledger | None:
        self._sink.open()
        target = self.target
        # One sink object may serve several runs, each with another target.
        if self._ledger is not None and self._ledger.target != target:
            self.close()
        if self._ledger is None and target is not None:
            self._ledger, self._received = Ledger(self.folder, target), set()
            self._ledger.enter()
        return self._ledger

    def _record(self, ledger: Ledger, ids: Sequence[str]) -> None:
        try:
            if ids:
                ledger.add(ids)
        except OSError as error:
            logger.warning(
                "%s cannot be written, so rollouts that were sent may be sent again: %s", ledger.path, error
            )


def _delivered(ids: Sequence[str], returned: object, *, had: int) -> Delivered:
    """Return the result of sending `ids`, for which `export_traces` returned `returned`."""
    sent = len(_arrived(ids, returned))
    return Delivered(sent, had, _foreign(ids, returned), sent if returned is None else 0)


def _arrived(ids: Sequence[str], returned: object) -> list[str]:
    """Return the ids that arrived: all of them, unless the sink returned a list."""
    if not are_ids(returned):
        return list(ids)
    arrived = set(returned)
    return [rollout_id for rollout_id in ids if rollout_id in arrived]


def _foreign(ids: Sequence[str], returned: object) -> str:
    """Return the first returned id that is not in `ids`; empty if there is none."""
    return next(iter(set(returned).difference(ids)), "") if are_ids(returned) else ""


def are_ids(returned: object) -> TypeGuard[Collection[str]]:
    """Return whether the sink returned a list of ids."""
    return isinstance(returned, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in returned)
