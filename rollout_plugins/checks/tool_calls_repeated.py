"""The same call again and again in one rollout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share

#: How often the same call must be in a rollout, and in which share of the rollouts that call tools.
_TIMES, _SHARE = 3, 0.08


class ToolCallsRepeated(Check):
    """Rollouts call the same tool with the same arguments three times or more.

    The model does not see the result (it is cut, empty, or not in the next prompt), or it has learned that calling
    is rewarded.
    """

    name = "tool-calls-repeated"
    needs = ("tools",)
    columns = ("tool_calls",)
    advice = "Read one of these rollouts: does the answer to the first call reach the next prompt?"

    def begin(self) -> None:
        self.why = "no tool was called"
        self._share = Share(chances=40, generations=2)

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        owners = columns.call_owners
        if not len(owners):
            return
        arguments = columns.flat_calls.field("arguments").fill_null("").dictionary_encode()
        places = arguments.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        names, name_places = columns.call_names
        keys = (owners * len(arguments.dictionary) + places) * len(names) + name_places
        distinct, counts = np.unique(keys, return_counts=True)
        repeating = np.unique(distinct[counts >= _TIMES] // (len(arguments.dictionary) * len(names)))
        self._share.add(step, len(repeating), len(np.unique(owners)))
        if len(repeating) and self._share.share >= _SHARE and self._share.events >= 5:
            yield self.finding(
                "the same call again and again",
                f"{self._share.events} of {self._share.chances} rollouts with tool calls make the same call "
                f"{_TIMES} times "
                f"or more, at most {counts.max()} times, steps {self._share.since} to {step}",
                steps=(self._share.since, step),
                rollouts=columns.ids(repeating),
            )
