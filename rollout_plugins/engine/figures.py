"""Plugins' numbers on their way to the trainer's log: averaged, and without zeros that tell nothing."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

REASONS = 2
Place = tuple[str, str]
"""A split and a dataset: each is logged by itself."""


class Figures:
    """Sums, not rows: a trainer that never logs asks for none of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sums: dict[Place, dict[str, tuple[float, int]]] = {}
        self._not_zero: dict[Place, set[str]] = {}

    def add(self, place: Place, numbers: Mapping[str, float]) -> None:
        """Add the numbers of one generation."""
        with self._lock:
            sums = self._sums.setdefault(place, {})
            for name, number in numbers.items():
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + number, count + 1

    def pop(self, place: Place, headlines: Collection[str] = ()) -> dict[str, float]:
        """Averages over the generations since the last call, without `headlines` that are 0.

        The first 0 after another number stays: otherwise a chart would stop at that number, as if it still held.
        """
        with self._lock:
            means = {name: total / count for name, (total, count) in self._sums.pop(place, {}).items()}
            were = self._not_zero.setdefault(place, set())
            shown = {name: mean for name, mean in means.items() if mean or name in were or name not in headlines}
            self._not_zero[place] = (were - means.keys()) | {name for name, mean in means.items() if mean}
        return shown


def lost(drops: Mapping[str, int], unsent: Mapping[str, int]) -> dict[str, float]:
    """What was lost so far, and what sinks missed. Many reasons share a name: `run.json` has them all."""
    reasons = list(drops.items())
    if len(reasons) > REASONS:
        reasons[REASONS - 1 :] = [("others", sum(count for _, count in reasons[REASONS - 1 :]))]
    missed = {f"unsent/{sink}": float(count) for sink, count in unsent.items()}
    return missed | {f"drops/{reason}": float(count) for reason, count in reasons}
