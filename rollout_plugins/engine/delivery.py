"""The way to one sink, while training and from the store: each rollout once, even while others send there too."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, cast

from rollout_hookspecs import Sink

from rollout_plugins.engine.ledger import Ledger

logger = logging.getLogger("rollout_plugins")

Export = Callable[[Collection[str]], object]


class Delivered(NamedTuple):
    """How many rollouts were sent, and how many the target had; a sink may have taken fewer than it was given."""

    sent: int
    had: int
    foreign: str = ""
    """An id that the sink returned and was not given."""


class _Defaults(Sink):
    """What a sink has that brings nothing of its own."""


_DEFAULTS = _Defaults()


class _Complete:
    """A plugin, with the contract's defaults for what it lacks."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plugin, name, None)
        return getattr(_DEFAULTS, name) if found is None else found


def as_sink(plugin: Any) -> Sink:
    """The plugin with all that a sink may have."""
    return cast("Sink", _Complete(plugin))


class Delivery:
    """Sends a run's rollouts to a sink, and remembers which ones. A sink without a target is sent everything."""

    def __init__(self, plugin: Any, folder: Path, *, patience: float = math.inf) -> None:
        self.folder = folder
        self._sink = as_sink(plugin)
        self._patience = patience
        self._ledger: Ledger | None = None
        self._had: set[str] = set()

    @property
    def target(self) -> str | None:
        """Where the rollouts go; None when they are not kept there, as on standard output."""
        found = self._sink.target
        return found if found and isinstance(found, str) and not found.endswith(":-") else None

    def ask(self) -> None:
        """Find out what the target has: from itself where it can say, else from what was noted when it was sent."""
        ledger = self._opened()
        if ledger is None:
            return
        with ledger.turn(self._patience):
            noted = ledger.news()
            received = self._sink.received()
            # What somebody else sends now may be noted but still be on its way.
            self._had = noted if received is None else {*received} | (set() if ledger.is_alone() else noted)

    def send(self, ids: Sequence[str], export: Export) -> Delivered:
        """Have those sent that the target does not have."""
        ledger = self._opened()
        if ledger is None:
            said = export(ids)
            return Delivered(len(_arrived(ids, said)), 0, _foreign(ids, said))
        with ledger.turn(self._patience):
            self._had |= ledger.news()
            new = [ident for ident in ids if ident not in self._had]
            said = export(new) if new else ()
            arrived = _arrived(new, said)
            self._note(ledger, arrived)
        return Delivered(len(arrived), len(ids) - len(new), _foreign(ids, said))

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.leave()
            self._ledger = None

    def _opened(self) -> Ledger | None:
        self._sink.open()
        target = self.target
        # One sink object may serve several runs, and send each to a place of its own.
        if self._ledger is not None and self._ledger.target != target:
            self.close()
        if self._ledger is None and target is not None:
            self._ledger, self._had = Ledger(self.folder, target), set()
            self._ledger.enter()
        return self._ledger

    def _note(self, ledger: Ledger, ids: Sequence[str]) -> None:
        try:
            if ids:
                ledger.add(ids)
        except OSError as error:
            logger.warning("%s: what was sent could not be noted, and may be sent again: %s", ledger.path, error)


def _arrived(ids: Sequence[str], said: object) -> list[str]:
    """What the target has now: all, unless the sink says which."""
    if not are_ids(said):
        return list(ids)
    arrived = set(said)
    return [ident for ident in ids if ident in arrived]


def _foreign(ids: Sequence[str], said: object) -> str:
    """The first id that is not one of these; empty when there is none."""
    return next(iter(set(said).difference(ids)), "") if are_ids(said) else ""


def are_ids(said: object) -> TypeGuard[Collection[str]]:
    """Whether a sink says what arrived."""
    return isinstance(said, (list, tuple, set, frozenset)) and all(isinstance(ident, str) for ident in said)
