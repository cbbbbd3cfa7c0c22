"""Compare the first generations of a run with its latest ones, without keeping those in between."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from rollout_plugins.checks.generation_columns import Floats, GenerationColumns

#: Below this many independent values a difference means nothing.
_FEWEST = 6
#: From this many standard errors on, a difference is not chance, although it is tested at every step.
SURE = 5.0


class Change(NamedTuple):
    """How a number was at first, how it is now, and how certain the difference is."""

    before: float
    after: float
    errors: float
    """The difference in standard errors; positive when the number rose."""
    since: int
    """The step at which the latest generations begin."""


class Window:
    """A number per rollout: its first values, which stay, and its latest, which move with the run.

    Rollouts of one group resemble each other, so a group counts as one observation.
    """

    def __init__(self, first: int = 128, latest: int = 64) -> None:
        """`first` and `latest` are how many rollouts each part of the window holds at least."""
        self._first_size, self._latest_size = first, latest
        self._first: list[Floats] = []
        self._first_rollouts = self._latest_rollouts = 0
        self._latest: deque[tuple[int, int, Floats]] = deque()

    def add(self, step: int, columns: GenerationColumns, values: Any, rows: Any = None) -> None:
        """Add a generation; `rows` flags the rollouts to count, by default those with a finite value."""
        values = np.asarray(values, float)
        values = np.where(np.isfinite(values) if rows is None else rows, values, np.nan)
        means = columns.group_means(values)
        self.add_means(step, means[np.isfinite(means)], int(np.isfinite(values).sum()))

    def add_means(self, step: int, means: Floats, rollouts: int) -> None:
        """Add the means of groups, or other independent values."""
        if not len(means):
            return
        if self._first_rollouts < self._first_size or sum(map(len, self._first)) < _FEWEST:
            self._first.append(means)
            self._first_rollouts += rollouts
            return
        self._latest.append((step, rollouts, means))
        self._latest_rollouts += rollouts
        while self._latest_rollouts - self._latest[0][1] >= self._latest_size and self._has_enough_without_oldest():
            self._latest_rollouts -= self._latest.popleft()[1]

    def _has_enough_without_oldest(self) -> bool:
        return sum(len(means) for _, _, means in self._latest) - len(self._latest[0][2]) >= _FEWEST

    def change(self) -> Change | None:
        """Compare the latest values with the first; None until there are enough of both."""
        if self._latest_rollouts < self._latest_size:
            return None
        first, latest = np.concatenate(self._first), np.concatenate([means for _, _, means in self._latest])
        if len(latest) < _FEWEST:
            return None
        before, after = float(first.mean()), float(latest.mean())
        # A floor for the error: values that never varied say nothing about how much they could.
        floor = 1e-3 * (abs(before) + abs(after)) + 1e-12
        error = max(sqrt(_variance(first) / len(first) + _variance(latest) / len(latest)), floor)
        return Change(before, after, (after - before) / error, self._latest[0][0])


class Share:
    """The share of events among the chances for them, over a window of the latest generations."""

    def __init__(self, chances: int = 64, generations: int = 2) -> None:
        """`chances` and `generations` are how much the window holds at least before `share` answers."""
        self._needed, self._fewest = chances, generations
        self._rows: deque[tuple[int, int, int]] = deque()
        self.events = self.chances = 0

    def add(self, step: int, events: int, chances: int) -> None:
        """Add a generation."""
        if not chances:
            return
        self._rows.append((step, events, chances))
        self.events += events
        self.chances += chances
        while len(self._rows) > self._fewest and self.chances - self._rows[0][2] >= self._needed:
            _, old_events, old_chances = self._rows.popleft()
            self.events -= old_events
            self.chances -= old_chances

    @property
    def share(self) -> float:
        """The share of events; 0 until there were enough chances."""
        if self.chances < self._needed or len(self._rows) < self._fewest:
            return 0.0
        return self.events / self.chances

    @property
    def since(self) -> int:
        """The step at which the window begins."""
        return self._rows[0][0] if self._rows else 0


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def spell(value: float) -> str:
    """Write a number for a message: two decimals where they matter."""
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.2f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"
