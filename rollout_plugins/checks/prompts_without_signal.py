"""Prompts that nobody or everybody solves, each time they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of

_MOST, _FEWEST, _SHARE = 100_000, 10, 0.3


class PromptsWithoutSignal(Check):
    """Many prompts were tried several times, and every rollout of them got the lowest or the highest reward.

    They cost as much as the others and teach nothing. Reported as information.
    """

    name = "prompts-without-signal"
    needs = ("rewards", "groups")
    columns = ("prompt",)
    advice = "Leave these prompts out: rollouts sql lists the mean reward of each prompt."

    def begin(self) -> None:
        self._prompts: dict[int, tuple[int, float, float]] = {}

    def look(self, table: pa.Table, step: int, split: str) -> Iterable[Finding]:
        if split != "train":
            return ()
        columns = columns_of(table)
        self.observe(columns.count)
        hashes = columns.prompt.hashes[columns.group_starts].tolist()
        means, spreads = columns.group_means(columns.reward).tolist(), columns.group_spread.tolist()
        for key, mean, spread in zip(hashes, means, spreads, strict=True):
            if np.isnan(mean) or np.isnan(spread):
                continue
            visits, low, high = self._prompts.get(key, (0, np.inf, -np.inf))
            if visits or len(self._prompts) < _MOST:
                self._prompts[key] = (visits + 1, min(low, mean - spread / 2), max(high, mean + spread / 2))
        self._step = step
        return ()

    def finish(self) -> Iterator[Finding]:
        known = [(low, high) for visits, low, high in self._prompts.values() if visits >= 3]
        if len(known) < _FEWEST:
            return
        lowest, highest = min(low for low, _ in known), max(high for _, high in known)
        nobody = sum(high <= lowest + 1e-9 for _, high in known)
        everybody = sum(low >= highest - 1e-9 for low, _ in known)
        if highest > lowest and nobody + everybody >= _SHARE * len(known):
            yield self.finding(
                "prompts without a signal",
                f"of {len(known)} prompts that were tried three times or more, nobody ever solved {nobody} and "
                f"everybody "
                f"always solved {everybody}",
                "info",
                steps=(self._step,),
            )
