"""Rollouts that were generated and then not trained on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rollout_hookspecs import Finding, Verdict, hookimpl

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share

_REASON = re.compile(r'"trained":\s*"no: ?([^"]*)"')
_SHARE = 0.1


class RolloutsUntrained(Check):
    """Rollouts were generated and scored, but the trainer took no step with them.

    They are too old, were replaced by better ones, or training ended inside their batch. A small number is normal at
    the end of a training; a large share is time spent for nothing.
    """

    name = "rollouts-untrained"
    needs = ()
    columns = ("marks",)
    advice = "Generate fewer rollouts ahead, allow older ones, or end training at the end of a generation."

    def begin(self) -> None:
        self._share = Share(chances=48, generations=3)
        self._reasons: Counter[str] = Counter()
        self._rollouts = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        if split != "train":
            return
        columns = columns_of(table)
        self.observe(columns.count)
        self._rollouts += columns.count
        marks = columns.array("marks")
        if marks.null_count == len(marks):
            self._share.add(step, 0, columns.count)
            return
        # What the trainer skips on purpose, since the whole group has the same reward, is no fault of its own.
        is_untrained = pc.fill_null(pc.match_substring(marks, '"no: '), False).to_numpy(zero_copy_only=False)
        for text in marks.filter(pa.array(is_untrained)).to_pylist():
            if match := _REASON.search(text):
                self._reasons[match[1]] += 1
        self._share.add(step, int(is_untrained.sum()), columns.count)
        if self._share.share >= _SHARE and self._share.events >= 8:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self._reasons.most_common(3))
            yield self.finding(
                "rollouts are not trained on",
                f"{self._share.events} of {self._share.chances} rollouts were not trained on ({reasons}), steps "
                f"{self._share.since} to {step}",
                steps=(self._share.since, step),
                rollouts=columns.ids(is_untrained),
            )

    @hookimpl
    def check_run(self, run: Any) -> Verdict:  # type: ignore[override]
        """Conclude from what the run counted while it was recorded."""
        untrained = sum(run.health.untrained.values())
        if untrained and not self._findings:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(run.health.untrained.items()))
            many = untrained > _SHARE * self._rollouts and self._rollouts > 256
            list(self._new([
                self.finding(
                    "rollouts were not trained on",
                    f"{untrained} of {self._rollouts} rollouts were not trained on ({reasons})",
                    "warning" if many else "info",
                )
            ]))  # fmt: skip
        return self.verdict()
