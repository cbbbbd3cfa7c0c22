"""Answers that repeat the same few words until they end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import TAIL, Bytes, Flags, Integers, columns_of, text_of
from rollout_plugins.checks.windows import Share

#: Of how many rollouts of a generation the end is examined.
_SAMPLE = 48
#: An end with fewer different windows of four bytes than this share of its length repeats itself.
_DISTINCT = 0.3
_SHARE = 0.08


class AnswersLoop(Check):
    """Answers end in a loop: the same word, line or character again and again.

    The policy has collapsed, often after too large a step or a NaN ("!!!!" is token 0), or the sampler's temperature
    is too low for this model.
    """

    name = "answers-loop"
    needs = ()
    columns = ("completion",)
    advice = "Look at grad_norm and KL at the first of these steps; lower the learning rate and resume before it."

    def begin(self) -> None:
        self._share = Share(chances=48, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        rows = np.linspace(0, columns.count - 1, min(columns.count, _SAMPLE)).astype(int)
        self.observe(len(rows))
        is_loop = loops(columns.tail_bytes[rows])
        self._share.add(step, int(is_loop.sum()), len(rows))
        if is_loop.any() and self._share.share >= _SHARE and self._share.events >= 5:
            yield self.finding(
                "answers repeat themselves",
                f"{self._share.events} of {self._share.chances} answers end in a loop, steps {self._share.since} to "
                f"{step}, "
                f"such as {text_of(columns.tails[int(rows[is_loop][0])], 50)!r}",
                "severe" if self._share.share > 0.5 else "warning",
                steps=(self._share.since, step),
                rollouts=columns.ids(rows[is_loop]),
            )


def loops(tails: Bytes) -> Flags:
    """Return which ends of texts consist of few different windows. Short texts never do."""
    padded = np.ascontiguousarray(tails)
    windows: Integers = np.zeros((len(padded), TAIL - 3), np.uint32)
    for at in range(4):
        windows |= padded[:, at : TAIL - 3 + at].astype(np.uint32) << np.uint32(8 * at)
    windows.sort(axis=1)
    distinct = (windows[:, 1:] != windows[:, :-1]).sum(axis=1) + 1
    is_long = (padded[:, TAIL - 120] != 0) & (padded[:, -1] != 0)
    written = (padded != 0).sum(axis=1)
    result: Flags = is_long & (distinct < _DISTINCT * written)
    return result
