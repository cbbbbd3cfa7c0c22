"""Reasoning that was there at first, and is empty now."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Window

_EMPTY = re.compile(rb"\s*(<think>)?\s*</think>")


class ThinkingEmpty(Check):
    """Answers had reasoning at the start, and now have an empty `<think></think>` or none.

    The model found that the format reward is paid without the thinking, or the chat template closes the block itself.
    """

    name = "thinking-empty"
    needs = ()
    columns = ("completion",)
    advice = "Reward the content of the reasoning, not its tags; look at what the template adds after the prompt."

    def begin(self) -> None:
        self._window = Window()
        self.why = "no answer had any reasoning"

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        first = columns.completion.first_answers
        reasons = columns.completion.reasoning_sizes
        thinks = np.array([
            (at >= 0 and reasons[at] > 8) or (b"<think>" in head and not _EMPTY.match(head))
            for at, head in zip(first.tolist(), columns.heads, strict=True)
        ])  # fmt: skip
        self._window.add(step, columns, thinks.astype(float))
        if thinks.any():
            self.observe(columns.count)
        change = self._window.change()
        if change and change.before > 0.3 and change.after < 0.5 * change.before and change.errors < -5:
            yield self.finding(
                "the reasoning became empty",
                f"{change.before:.0%} → {change.after:.0%} of the answers have reasoning, from step {change.since}",
                steps=(change.since, step),
                rollouts=columns.ids(~thinks),
            )
