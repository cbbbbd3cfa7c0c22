"""Answers of different texts that are all counted as equally long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import Floats, Texts, columns_of


class LengthsEqual(Check):
    """All answers of a generation have the same number of tokens, while their texts differ in length.

    Padding counts as written by the model: lengths, the loss's normalisation and the share of cut answers are wrong.
    """

    name = "lengths-equal"
    needs = ()
    columns = ("completion", "completion_tokens", "finish")
    advice = "Count tokens up to the first end token; check the attention mask that the length is taken from."

    def begin(self) -> None:
        self._generations = self._rollouts = 0
        self.why = "the number of tokens is not known"

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        lengths: Floats = columns.completion_tokens
        sizes: Floats = columns.answer_sizes
        if columns.count < 4 or bool(np.isnan(lengths).any()):
            return
        self.observe(columns.count)
        if (
            lengths.max() > lengths.min()
            or sizes.mean() == 0
            or sizes.std() < 0.08 * sizes.mean()
            or _are_cut(columns.finish)
        ):
            self._generations = self._rollouts = 0
            return
        self._generations += 1
        self._rollouts += columns.count
        if self._generations >= 3 and self._rollouts >= 24:
            yield self.finding(
                "all answers count the same number of tokens",
                f"all {self._rollouts} answers of the latest {self._generations} generations have {lengths[0]:.0f} "
                f"tokens, "
                f"with texts of {sizes.min():.0f} to {sizes.max():.0f} bytes, until step {step}",
                "severe",
                steps=(step,),
                rollouts=columns.ids(np.argsort(sizes)),
            )


def _are_cut(finish: Texts) -> bool:
    """Return whether the limit ended most answers: then equal lengths are what one expects."""
    return bool((finish == "length").mean() > 0.5)
