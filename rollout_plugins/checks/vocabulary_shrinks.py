"""Answers that use fewer and fewer different words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Bytes, Integers, columns_of
from rollout_plugins.checks.windows import Window

#: How many words a sample has; shares of different words compare only between samples of one size.
_WORDS = 512
_ROWS = 32
_RATIO = 0.6


class VocabularyShrinks(Check):
    """The same number of words contains far fewer different ones than at the start.

    Answers to different prompts become alike long before they are identical: entropy collapses. It can also be that
    the later prompts are more alike.
    """

    name = "vocabulary-shrinks"
    needs = ()
    columns = ("completion",)
    advice = "Look at the entropy in the trainer's log; raise the temperature or the entropy bonus, or lower the rate."

    def begin(self) -> None:
        self._window = Window(first=3 * _WORDS, latest=2 * _WORDS)
        self._rest: Integers = np.empty(0, np.uint64)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        rows = np.linspace(0, columns.count - 1, min(columns.count, _ROWS)).astype(int)
        self.observe(len(rows))
        self._rest = np.concatenate([self._rest, words(columns.head_bytes[rows])])[-8 * _WORDS :]
        shares = []
        while len(self._rest) >= _WORDS:
            sample, self._rest = self._rest[:_WORDS], self._rest[_WORDS:]
            shares.append(len(np.unique(sample)) / _WORDS)
        self._window.add_means(step, np.array(shares), _WORDS * len(shares))
        change = self._window.change()
        if change and change.after < _RATIO * change.before and change.errors < -6:
            yield self.finding(
                "the vocabulary shrinks",
                f"different words in a sample of {_WORDS}: {change.before * _WORDS:.0f} → "
                f"{change.after * _WORDS:.0f}, from "
                f"step {change.since}",
                "severe" if change.after < 0.3 * change.before else "warning",
                steps=(change.since, step),
                rollouts=columns.ids(rows),
            )


def words(heads: Bytes) -> Integers:
    """Return the first eight bytes of every word as a number."""
    texts = np.ascontiguousarray(heads)
    is_letter = texts > 32
    starts = is_letter[:, 1:-8] & ~is_letter[:, :-9]
    rows, places = np.nonzero(starts)
    flat = np.lib.stride_tricks.sliding_window_view(texts.reshape(-1), 8)
    windows = np.ascontiguousarray(flat[rows * texts.shape[1] + places + 1])
    # Bytes after the end of the word do not count.
    ends = np.cumsum(windows <= 32, axis=1) > 0
    windows[ends] = 0
    result: Integers = windows.view(np.uint64).reshape(-1)
    return result
