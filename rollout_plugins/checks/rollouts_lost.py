"""Rollouts that were generated and then not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from rollout_hookspecs import Finding, Verdict, hookimpl

from rollout_plugins.checks.base import Check

_LOGGED = "drops/"
#: The reason under which a single value of a rollout is counted; `values-lost` reports those.
VALUES = "unserialisable_field"


def logged_losses(values: Mapping[str, float]) -> dict[str, int]:
    """Return what the trainer's log says was lost so far, by reason."""
    return {name.partition(_LOGGED)[2]: int(count) for name, count in values.items() if _LOGGED in name and count > 0}


class RolloutsLost(Check):
    """Rollouts existed that are not in the run: recording could not keep up, or could not observe them.

    Every other check and every chart then speaks of the rest alone. The reasons are counted by name in `run.json`, and
    the page on failures says what each of them means.
    """

    name = "rollouts-lost"
    needs = ()
    columns = ()
    advice = "Look the reason up on the documentation's page about failures."

    def begin(self) -> None:
        self._count = 0

    def look(self, table: pa.Table, step: int, split: str) -> Iterable[Finding]:
        self.observe(table.num_rows)
        self._count += table.num_rows
        return ()

    def look_at_log(self, step: int, values: Mapping[str, float]) -> Iterator[Finding]:
        lost = _rollouts_of(logged_losses(values))
        if lost:
            yield self._report(lost, f", until step {step}", (step,))

    @hookimpl
    def check_run(self, run: Any) -> Verdict:  # type: ignore[override]
        """Conclude from what the run counted while it was recorded."""
        if lost := _rollouts_of(run.health.drops):
            list(self._new([self._report(lost, "", ())]))
        return self.verdict()

    def _report(self, lost: Mapping[str, int], when: str, steps: tuple[int, ...]) -> Finding:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(lost.items()))
        total = sum(lost.values())
        return self.finding(
            "rollouts were lost",
            f"{total} rollouts were generated and are not recorded ({reasons}), beside {self._count} that are{when}",
            "severe" if total > 0.1 * self._count else "warning",
            steps=steps,
        )


def _rollouts_of(lost: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in lost.items() if reason != VALUES}
