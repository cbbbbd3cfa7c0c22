"""Runs the built-in checks over generations, as a training does."""

from rollout_plugins import Step
from rollout_plugins.checks import built_in_checks


def started_checks(run):
    """Return all built-in checks, begun for a run."""
    checks = [kind() for kind in built_in_checks()]
    for check in checks:
        check.on_run_start(run)
    return checks


def check_tables(simulation, until=lambda finding: False):
    """Return the findings of a simulated training, up to the first one for which `until` holds."""
    checks, findings = started_checks(simulation.run), []
    for step, table in simulation.tables():
        for check in checks:
            findings += check.check_rollouts(table=table, step=step)
        if any(map(until, findings)):
            return findings
    for check in checks:
        findings += check.finish()
    return findings


def names_found(run):
    """Return the checks that found something worse than information in a stored run, with the titles."""
    return {finding.check: finding.title for finding in run.check().findings if finding.severity != "info"}


def step_of(number, split="train"):
    return Step(step=number, split=split)
