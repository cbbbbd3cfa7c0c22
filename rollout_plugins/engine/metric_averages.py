"""Average the plugins' metrics over generations for the trainer's log, and name what is logged."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

#: How many reasons for losses get a metric of their own; `run.json` has all of them.
SEPARATE_REASONS = 2
Place = tuple[str, str]
"""A split and a dataset, each of which is logged separately."""


class MetricAverages:
    """Running averages by place. Stores sums, not rows, since some trainers never log."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sums: dict[Place, dict[str, tuple[float, int]]] = {}
        self._nonzero: dict[Place, set[str]] = {}

    def add(self, place: Place, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one generation."""
        with self._lock:
            sums = self._sums.setdefault(place, {})
            for name, value in metrics.items():
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + value, count + 1

    def pop(self, place: Place, headlines: Collection[str] = ()) -> dict[str, float]:
        """Return the averages since the last call, without `headlines` that are 0.

        The first 0 after another value is included: without it, a chart would continue at the old value.
        """
        with self._lock:
            means = {name: total / count for name, (total, count) in self._sums.pop(place, {}).items()}
            previous = self._nonzero.setdefault(place, set())
            logged = {name: mean for name, mean in means.items() if mean or name in previous or name not in headlines}
            self._nonzero[place] = (previous - means.keys()) | {name for name, mean in means.items() if mean}
        return logged


def loss_metrics(drops: Mapping[str, int], unsent: Mapping[str, int]) -> dict[str, float]:
    """Return the numbers of lost rollouts by reason, with all but the first reasons summed up, and of unsent ones."""
    reasons = list(drops.items())
    if len(reasons) > SEPARATE_REASONS:
        others = sum(count for _, count in reasons[SEPARATE_REASONS - 1 :])
        reasons[SEPARATE_REASONS - 1 :] = [("others", others)]
    by_sink = {f"unsent/{sink}": float(count) for sink, count in unsent.items()}
    return by_sink | {f"drops/{reason}": float(count) for reason, count in reasons}


def log_names(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return the metrics under the names that they have in the trainer's log."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
