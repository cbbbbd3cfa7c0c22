"""Answers that the length limit cuts off."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share

_SHARE, _MOST = 0.25, 0.5


class AnswersTruncated(Check):
    """Many answers are cut off at the length limit, before the model has ended them.

    A cut answer mostly gets no reward, whatever it would have said; and if the end token is never sampled, the limit
    is all that ends an answer.
    """

    name = "answers-truncated"
    needs = ()
    columns = ("finish",)
    advice = "Raise max_completion_length, or mask truncated completions in the loss (mask_truncated_completions)."

    def begin(self) -> None:
        self._share = Share(chances=64, generations=3)
        self._first: list[float] = []

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        is_known = columns.finish != "unknown"
        if not is_known.any():
            self.why = "it is not known why the answers ended"
            return
        self.observe(int(is_known.sum()))
        is_cut = columns.finish == "length"
        self._share.add(step, int(is_cut.sum()), int(is_known.sum()))
        if len(self._first) < 5:
            self._first.append(float(is_cut.mean()))
        first, share = sum(self._first) / len(self._first), self._share.share
        if share < _SHARE:
            return
        rose = len(self._first) == 5 and share - first > 0.2
        title = "answers are cut off" if share < _MOST and not rose else "most answers are cut off"
        yield self.finding(
            title if not rose else "more and more answers are cut off",
            f"{self._share.events} of {self._share.chances} answers reach the length limit, steps "
            f"{self._share.since} to "
            f"{step}" + (f"; at first {first:.0%}" if rose else ""),
            "warning" if share >= _MOST or rose else "info",
            steps=(self._share.since, step),
            rollouts=columns.ids(is_cut),
        )
