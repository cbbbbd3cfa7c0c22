"""Tools that always fail, or that began to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import pyarrow as pa
from rollout_hookspecs import Finding

from rollout_plugins.checks.base import Check
from rollout_plugins.checks.generation_columns import GenerationColumns, Integers, columns_of
from rollout_plugins.checks.windows import Share

#: How many calls are needed, and which share of failures counts as always.
_FEWEST, _ALWAYS = 10, 0.9
#: By how much the share of failures must have risen, and how many standard errors that must be.
_RISE, _SURE = 0.25, 4.5


@dataclass
class _Tool:
    """The calls of one tool so far."""

    first_calls: int = 0
    first_failed: int = 0
    latest: Share = field(default_factory=lambda: Share(chances=12, generations=2))
    all_calls: int = 0
    all_failed: int = 0
    last_step: int = 0
    rollouts_since: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    per_rollout: deque[float] = field(default_factory=lambda: deque(maxlen=10))


class ToolsFailing(Check):
    """A tool always fails, began to fail, or is no longer called after it failed.

    A service that is down or out of quota, a changed signature, a sandbox without network. The model learns to avoid
    the tool, so the share of failed calls falls again and looks like an improvement.
    """

    name = "tools-failing"
    needs = ("tools",)
    columns = ("tool_calls",)
    advice = "Call the tool by hand with the arguments of one of these rollouts."

    def begin(self) -> None:
        self._tools: dict[str, _Tool] = {}

    def look(self, table: pa.Table, step: int, split: str) -> Iterator[Finding]:
        columns = columns_of(table)
        self.observe(columns.count)
        names, places = columns.call_names
        has_failed = columns.call_statuses == "error"
        has_run = has_failed | (columns.call_statuses == "ok")
        for number, name in enumerate(names):
            own = (places == number) & has_run
            calls, failed = int(own.sum()), int((own & has_failed).sum())
            if not calls:
                continue
            tool = self._tools.setdefault(name, _Tool())
            self._add(tool, step, calls, failed)
            if failed:
                errors = columns.flat_calls.field("error")
                for place in np.flatnonzero(own & has_failed)[:20]:
                    tool.reasons[_kind_of(errors[int(place)].as_py())] += 1
            yield from self._judge(name, tool, step, columns, own & has_failed)
        yield from self._unused(names, columns.count, step)

    def _add(self, tool: _Tool, step: int, calls: int, failed: int) -> None:
        tool.all_calls += calls
        tool.all_failed += failed
        tool.last_step, tool.rollouts_since = step, 0
        if tool.first_calls < 24:
            tool.first_calls += calls
            tool.first_failed += failed
        tool.latest.add(step, failed, calls)

    def _judge(
        self, name: str, tool: _Tool, step: int, columns: GenerationColumns, failing: Integers
    ) -> Iterator[Finding]:
        evidence = columns.ids(np.unique(columns.call_owners[failing]))
        reason = f" ({tool.reasons.most_common(1)[0][0]})" if tool.reasons else ""
        if tool.all_calls >= _FEWEST and tool.all_failed >= _ALWAYS * tool.all_calls:
            yield self.finding(
                f"{name} always fails",
                f"{name}: {tool.all_failed} of {tool.all_calls} calls failed{reason}, until step {step}",
                "severe",
                steps=(step,),
                rollouts=evidence,
            )
        elif tool.latest.share:
            before = (tool.first_failed + 1) / (tool.first_calls + 2)
            after = tool.latest.share
            error = sqrt(before * (1 - before) * (1 / tool.first_calls + 1 / tool.latest.chances))
            if after - before > _RISE and (after - before) / error > _SURE:
                yield self.finding(
                    f"{name} began to fail",
                    f"{name}: {tool.first_failed} of the first {tool.first_calls} calls failed, and "
                    f"{tool.latest.events} "
                    f"of the latest {tool.latest.chances}{reason}, from step {tool.latest.since}",
                    "severe" if after > 0.8 else "warning",
                    steps=(tool.latest.since, step),
                    rollouts=evidence,
                )

    def _unused(self, names: list[str], rollouts: int, step: int) -> Iterator[Finding]:
        for name, tool in self._tools.items():
            if name in names:
                continue
            tool.rollouts_since += rollouts
            if tool.rollouts_since >= 128 and tool.all_calls >= 24 and tool.all_failed > 0.5 * tool.all_calls:
                yield self.finding(
                    f"{name} is no longer called",
                    f"{name}: {tool.all_failed} of {tool.all_calls} calls failed; not called since step "
                    f"{tool.last_step}",
                    steps=(tool.last_step, step),
                )


def _kind_of(error: str | None) -> str:
    """Return the class that an error text begins with, or its first words."""
    first = (error or "unknown").strip().split("(")[0].split(":")[0]
    return first[:40] or "unknown"
