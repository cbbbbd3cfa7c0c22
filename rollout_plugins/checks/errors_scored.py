"""Rollouts that broke off with an error, and were scored as if they were finished."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of


class ErrorsScored(Check):
    """Rollouts that ended with an error have a reward and an advantage, so the model is trained on them.

    A crash of the environment, a timeout or an aborted request then counts as an answer of the model.
    """

    name = "errors-scored"
    needs = ("rewards",)
    columns = ("finish", "error")
    advice = (
        "Return None from the reward function for rollouts that ended with an error, or leave them out of the loss."
    )

    def begin(self) -> None:
        self._rollouts = self._scored = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        errors = columns.array("error")
        has_error = columns.finish == "error"
        if errors.null_count < len(errors):
            has_error |= ~np.asarray(pc.is_null(errors).to_numpy(zero_copy_only=False), bool)
        is_scored = has_error & np.isfinite(columns.reward)
        self._rollouts += columns.count
        self._scored += int(is_scored.sum())
        if is_scored.any() and self._scored >= 4 and self._scored >= 0.01 * self._rollouts:
            yield self.finding(
                "rollouts with an error are scored",
                f"{self._scored} of {self._rollouts} rollouts ended with an error and have a reward, until step "
                f"{step}",
                steps=(step,),
                rollouts=columns.ids(is_scored),
            )
