"""Conversations in which the same answer stands twice in a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of, text_of
from rollout_plugins.checks.windows import Share


class AnswerTwice(Check):
    """The last answer stands twice in the conversation, one directly after the other.

    The loop that builds the conversation appends the answer once itself and once from the engine's reply. The model
    is trained to repeat itself, and every later turn sees the doubled answer.
    """

    name = "answer-twice"
    needs = ()
    columns = ("completion",)
    advice = "Check where the environment appends the model's message; only one place may."

    def begin(self) -> None:
        self._share = Share(chances=24, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        messages = columns.completion
        self.observe(columns.count)
        # The next message is the assistant's too, of the same rollout and of the same length.
        pair = messages.is_answer[:-1] & messages.is_answer[1:] & (np.diff(messages.owners) == 0)
        sizes = messages.texts.sizes
        pair &= (sizes[:-1] == sizes[1:]) & (sizes[1:] > 0)
        texts = messages.texts
        double = [at for at in np.flatnonzero(pair).tolist() if texts.head(at, 10_000) == texts.head(at + 1, 10_000)]
        owners = np.unique(messages.owners[double]) if double else np.empty(0, np.int64)
        self._share.add(step, len(owners), columns.count)
        if double and self._share.share >= 0.04 and self._share.events >= 4:
            yield self.finding(
                "the same answer twice in a row",
                f"{self._share.events} of {self._share.chances} rollouts have an answer twice in a row, steps "
                f"{self._share.since} to {step}, such as {text_of(texts.head(double[0], 80))!r}",
                "severe",
                steps=(self._share.since, step),
                rollouts=columns.ids(owners),
                turn=int(double[0] + 1 - messages.starts[messages.owners[double[0]]]),
            )
