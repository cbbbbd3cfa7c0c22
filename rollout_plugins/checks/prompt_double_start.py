"""Prompts that begin with the same special token twice, or with padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share


class PromptDoubleStart(Check):
    """Prompts begin with the same token twice: a double BOS, or with more of them: padding.

    The chat template writes the start token and the tokenizer adds another one. The model has never seen that in its
    earlier training, and every log-probability is slightly off.
    """

    name = "prompt-double-start"
    needs = ("tokens",)
    columns = ()
    advice = "Tokenize the rendered prompt with add_special_tokens=False."

    def begin(self) -> None:
        self._double = Share(chances=32, generations=2)
        self._padded = Share(chances=32, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        starts, ids = columns.tokens("prompt")
        is_long = np.diff(starts) >= 4
        if not is_long.any():
            return
        self.observe(columns.count, len(ids))
        begin = starts[:-1][is_long]
        repeats = ids[begin] == ids[begin + 1]
        pads = repeats & (ids[begin + 1] == ids[begin + 2])
        rows = np.flatnonzero(is_long)
        for share, is_bad, title, what in (
            (self._double, repeats & ~pads, "prompts start twice", "begin with the same token twice"),
            (self._padded, pads, "prompts hold padding", "begin with the same token three times or more"),
        ):
            share.add(step, int(is_bad.sum()), len(is_bad))
            if is_bad.any() and share.share >= 0.3:
                yield self.finding(
                    title,
                    f"{share.events} of {share.chances} prompts {what} (id {int(ids[begin[is_bad][0]])}), steps "
                    f"{share.since} to {step}",
                    "severe",
                    steps=(share.since, step),
                    rollouts=columns.ids(rows[is_bad]),
                )
