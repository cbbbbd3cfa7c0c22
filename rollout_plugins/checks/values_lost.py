"""Values of rollouts that could not be recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Finding, Verdict, hookimpl

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.rollouts_lost import VALUES, logged_losses


class ValuesLost(Check):
    """Values of rollouts could not be kept as they were; a note stands in their place.

    An object that cannot be written, a tensor in a column, a list that is not one. What is missing is named in the
    rollout's marks.
    """

    name = "values-lost"
    needs = ()
    columns = ("marks",)
    advice = "Look at the marks of one of these rollouts: they name the field and the reason."

    def begin(self) -> None:
        self._rollouts = self._lost = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        self._rollouts += columns.count
        marks = columns.array("marks")
        if marks.null_count == len(marks):
            return
        is_lost = pc.fill_null(pc.match_substring(marks, '"lost:'), False).to_numpy(zero_copy_only=False)
        self._lost += int(is_lost.sum())
        if is_lost.any():
            yield self.finding(
                "values of rollouts were lost",
                f"{self._lost} of {self._rollouts} rollouts have a value that could not be kept, until step {step}",
                steps=(step,),
                rollouts=columns.ids(is_lost),
            )

    def look_at_log(self, step: int, values: Mapping[str, float]) -> Iterator[Finding]:
        if count := logged_losses(values).get(VALUES):
            yield self._report(count, f", until step {step}", (step,))

    @hookimpl
    def check_run(self, run: Any) -> Verdict:  # type: ignore[override]
        """Conclude from what the run counted while it was recorded."""
        if (count := run.health.drops.get(VALUES)) and not self._findings:
            list(self._new([self._report(count, "", ())]))
        return self.verdict()

    def _report(self, count: int, when: str, steps: tuple[int, ...]) -> Finding:
        return self.finding(
            "values of rollouts were lost",
            f"{count} values could not be kept in {self._rollouts} rollouts{when}",
            steps=steps,
        )
