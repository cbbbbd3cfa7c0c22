"""Tell from the trainer's log when a loss or a gradient norm is NaN, infinite or far from what it was."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

WATCHED = ("loss", "grad_norm")
#: How many values are compared with, and how many there have to be.
HISTORY, LEAST = 50, 8
#: A value is an outlier if it differs from the median by more than this multiple of the usual deviation.
FAR = 10.0
#: The usual deviation is at least this share of the median, so that a constant value may change a little.
LEAST_DEVIATION = 0.1


class FaultWatch:
    """Remembers the last finite values of each number."""

    def __init__(self) -> None:
        self._history: dict[str, deque[float]] = {name: deque(maxlen=HISTORY) for name in WATCHED}
        self._is_broken = False

    def look(self, values: Mapping[str, float | str]) -> str:
        """Return what is wrong with the logged values, in words; nothing if they are fine, or were broken before."""
        numbers = {name: value for name in WATCHED if isinstance(value := values.get(name), float)}
        broken = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
        was_broken, self._is_broken = self._is_broken, bool(broken)
        if broken:
            return "" if was_broken else " and ".join(broken)
        faults = [line for name, value in numbers.items() if (line := self._compare(name, value))]
        for name, value in numbers.items():
            self._history[name].append(value)
        return " and ".join(faults)

    def _compare(self, name: str, value: float) -> str:
        history = self._history[name]
        if len(history) < LEAST:
            return ""
        median = statistics.median(history)
        deviation = 1.4826 * statistics.median(abs(one - median) for one in history)
        usual = max(deviation, LEAST_DEVIATION * abs(median), 1e-12)
        is_far = abs(value - median) > FAR * usual
        return f"{name} is {value:.4g}, and was about {median:.4g}" if is_far else ""
