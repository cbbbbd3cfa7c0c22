"""Findings as people see them: in which order, and with the command that shows their evidence."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from rollout_hookspecs import Finding, Severity

SEVERITIES: tuple[str, ...] = tuple(reversed(get_args(Severity)))
"""The most severe first."""
#: How many rollouts the command for the evidence names.
MAX_SHOWN = 3


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings once each, the most severe first, then by the step at which they began."""
    first: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.check, finding.title), finding)
    return sorted(first.values(), key=lambda finding: (_rank(finding), min(finding.steps, default=float("inf"))))


def _rank(finding: Finding) -> int:
    """Return 0 for the most severe; a severity of a later version counts as a warning."""
    return SEVERITIES.index(finding.severity if finding.severity in SEVERITIES else "warning")


def is_at_least(finding: Finding, severity: str) -> bool:
    """Return whether a finding is as severe as this, or more."""
    return _rank(finding) <= SEVERITIES.index(severity)


def evidence_command(finding: Finding, place: str) -> str:
    """Return the command that shows the rollouts of a finding, of the run in this folder or at this URL."""
    run = shlex.quote(place)
    if finding.rollouts:
        ids = " ".join(f"--id {shlex.quote(rollout_id)}" for rollout_id in finding.rollouts[:MAX_SHOWN])
        return f"rollouts show {run} {ids}"
    return f"rollouts show {run} --step {min(finding.steps)}" if finding.steps else f"rollouts stats {run}"


def where(finding: Finding) -> str:
    """Return at which step a finding began, such as `step 12` or `steps 12 to 40`; empty if it has none."""
    steps = sorted(set(finding.steps))
    if not steps:
        return ""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def summary(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity: `2 severe, 1 warning`; empty if there are none."""
    counts = {kind: sum(SEVERITIES[_rank(finding)] == kind for finding in findings) for kind in SEVERITIES}
    plural = {"warning": "warnings"}
    return ", ".join(f"{n} {plural.get(kind, kind) if n > 1 else kind}" for kind, n in counts.items() if n)


def as_row(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain values, without what it does not have."""
    row = {
        "check": finding.check,
        "severity": finding.severity,
        "title": finding.title,
        "text": finding.text,
        "steps": list(finding.steps),
        "rollouts": list(finding.rollouts),
        "advice": finding.advice,
    }
    more = {"turn": finding.turn, "token": finding.token}
    return {**row, **{name: value for name, value in more.items() if value is not None}}
