"""The start of the report: the findings of checks, and the best and the worst rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_hookspecs import Finding, Rollout

from rollout_plugins.content.findings import distinct, evidence_command
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.reading.sql_pieces import literal
from rollout_plugins.show.text import clean
from rollout_plugins.web.choose import add_condition
from rollout_plugins.web.pools import Texts

#: The most findings in the report, and rollouts of each that it always contains.
MAX_FINDINGS, MAX_EXAMPLES = 50, 4


class First:
    """The findings of a run, its best and worst rollout, and the rollouts that the report always contains."""

    def __init__(self, run: StoredRun, **filters: Any) -> None:
        self._run, self._filters = run, {**filters, "order": None}
        checked = run.check()
        self.findings = distinct([*checked.findings, *run.findings])[:MAX_FINDINGS]
        self.unobserved = {v.check: v.why for v in checked.verdicts if v.verdict == "unobserved"}
        self.clear = sum(verdict.verdict == "clear" for verdict in checked.verdicts)
        self.best = self._read_one(order="-reward", where="isfinite(reward)")
        self.worst = self._read_one(order="reward", where="isfinite(reward)")
        self._examples = self._read_examples()

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts that the report always contains."""
        return [*self._examples, *(rollout for rollout in (self.best, self.worst) if rollout is not None)]

    def _read_one(self, *, where: str, order: str) -> Rollout | None:
        return next(
            iter(self._run.rollouts(**{**add_condition(self._filters, where), "order": order, "limit": 1})), None
        )

    def _read_examples(self) -> list[Rollout]:
        """Read a few rollouts of each finding that match the filters."""
        ids = dict.fromkeys(i for finding in self.findings for i in finding.rollouts[:MAX_EXAMPLES])
        where = f"id in ({', '.join(map(literal, ids))})"
        return list(self._run.rollouts(**add_condition(self._filters, where))) if ids else []

    def as_json(self, stats: Sequence[Any], texts: Texts) -> dict[str, Any]:
        """Return the facts as the page reads them."""
        values: dict[str, Any] = {
            "findings": [self._finding(finding) for finding in self.findings],
            "clear": self.clear,
            "unobserved": {clean(name): clean(why) for name, why in self.unobserved.items()},
        }
        for name, rollout in (("best", self.best), ("worst", self.worst)):
            if rollout is not None:
                values[name] = {
                    "id": clean(rollout.id),
                    "reward": texts.scalar(rollout.reward),
                    "step": texts.scalar(rollout.step),
                    "as_much": self._run.count(**add_condition(self._filters, f"reward = {rollout.reward!r}")) - 1,
                }
        return values

    def _finding(self, finding: Finding) -> dict[str, Any]:
        return {
            "check": clean(finding.check),
            "severity": finding.severity,
            "title": clean(finding.title),
            "text": clean(finding.text),
            "advice": clean(finding.advice),
            "rollouts": [clean(rollout_id) for rollout_id in finding.rollouts[:MAX_EXAMPLES]],
            "total": len(finding.rollouts),
            # The report may be sent to others, so it does not name the folder.
            "command": clean(evidence_command(finding, "RUN")),
        }
