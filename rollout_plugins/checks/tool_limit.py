"""Episodes that ended because no further tool call was allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share

_SHARE = 0.1


class ToolLimit(Check):
    """Many rollouts end because the limit of tool calls or turns was reached, so they have no final answer.

    They are scored all the same, mostly with 0: the model is punished for a limit that it does not know.
    """

    name = "tool-limit"
    needs = ("tools",)
    columns = ("finish",)
    advice = "Raise max_tool_calling_iterations, or tell the model in the prompt how many calls it has."

    def begin(self) -> None:
        self._share = Share(chances=48, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        is_limited = columns.finish == "tool_limit"
        self._share.add(step, int(is_limited.sum()), columns.count)
        if self._share.share >= _SHARE:
            yield self.finding(
                "rollouts end at the tool limit",
                f"{self._share.events} of {self._share.chances} rollouts end at the limit of tool calls, steps "
                f"{self._share.since} to {step}",
                "severe" if self._share.share > 0.5 else "warning",
                steps=(self._share.since, step),
                rollouts=columns.ids(is_limited),
            )
