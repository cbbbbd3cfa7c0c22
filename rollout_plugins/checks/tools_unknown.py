"""Calls of tools that do not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import columns_of
from rollout_plugins.checks.windows import Share


class ToolsUnknown(Check):
    """The model calls tools that do not exist.

    The tools are missing in the prompt, or named otherwise there than in the code; or the model remembers tools of its
    earlier training. A few such calls are normal at the start, so only a lasting share of them is reported.
    """

    name = "tools-unknown"
    needs = ("tools",)
    columns = ("tool_calls",)
    advice = "Look at the rendered prompt: are the tools in it, under the names that the code uses?"

    def begin(self) -> None:
        self._share = Share(chances=40, generations=3)
        self._names: Counter[str] = Counter()

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        is_unknown = columns.call_statuses == "unknown"
        self._share.add(step, int(is_unknown.sum()), len(is_unknown))
        if not is_unknown.any():
            return
        names, places = columns.call_names
        self._names.update(names[place] for place in places[is_unknown])
        if self._share.share >= 0.08 and self._share.events >= 5:
            invented = ", ".join(f"{name[:40]!r} ({count})" for name, count in self._names.most_common(3))
            yield self.finding(
                "calls of unknown tools",
                f"{self._share.events} of {self._share.chances} calls name no tool that there is, steps "
                f"{self._share.since} to {step}: {invented}",
                steps=(self._share.since, step),
                rollouts=columns.ids(np.unique(columns.call_owners[is_unknown])),
            )
