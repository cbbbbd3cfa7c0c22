"""Results of tools that were cut to a fixed length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of, text_of
from rollout_plugins.checks.windows import Share

#: Shorter results may have equal lengths because of their format.
_SHORTEST = 160
_SHARE, _TOLERANCE = 0.1, 4


class ToolResultsCut(Check):
    """Many results of tools have exactly the same, largest length: a limit cut them.

    What the model needs may stand behind the cut, or, where the beginning is cut, in front of it. The limit may be the
    tool's, the environment's or the trainer's.
    """

    name = "tool-results-cut"
    needs = ("tools",)
    columns = ("completion",)
    advice = "Raise the limit, or let the tool return less; check that the cut keeps the side that matters."

    def begin(self) -> None:
        self.why = "no tool returned anything"
        self._share = Share(chances=32, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        messages = columns.completion
        replies = np.flatnonzero(~messages.is_answer)
        if not len(replies):
            return
        self.observe(columns.count)
        sizes = messages.texts.sizes[replies]
        largest = int(sizes.max())
        # A cut after so many characters leaves a few bytes more where some are not ASCII.
        is_cut = (sizes >= largest - _TOLERANCE) & (largest >= _SHORTEST)
        # The same result many times is one event, and one result is always the longest.
        cut_texts = {messages.texts.tail(int(at), 64) for at in replies[is_cut]}
        self._share.add(step, len(cut_texts) if len(cut_texts) > 1 else 0, len(replies))
        if len(cut_texts) > 1 and self._share.share >= _SHARE and self._share.events >= 5:
            example = int(replies[is_cut][0])
            yield self.finding(
                "results of tools are cut",
                f"{self._share.events} of {self._share.chances} results are {largest} bytes long, and none is "
                f"longer, "
                f"steps {self._share.since} to {step}; one ends with {text_of(messages.texts.tail(example, 40))!r}",
                steps=(self._share.since, step),
                rollouts=columns.ids(np.unique(messages.owners[replies[is_cut]])),
                turn=int(example - messages.starts[messages.owners[example]]),
            )
