"""Each fault is found by its check in a simulated training, and a healthy one of each kind stays silent."""

import pytest
from checked import check_tables
from run_faults import FAULTS, SKILL
from simulated_runs import KINDS, Simulation

from rollout_plugins.checks import built_in_checks

#: Seen to be found only after more steps than these tests wait for: benchmarks/checks.py measures them.
LATE = {"training rises, evaluation falls", "style is bought with correctness"}


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in LATE])
def test_fault_is_found(name):
    fault = FAULTS[name]
    starts = min(fault.starts, 11)
    simulation = Simulation(fault.kinds[2], 1, fault, fault.shares[2], starts)
    findings = check_tables(simulation, until=lambda finding: finding.check == fault.check)
    own = [finding for finding in findings if finding.check == fault.check]
    assert own, f"found {findings}"
    assert own[0].severity != "info"
    assert own[0].steps[-1] >= starts


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LATE))
def test_slow_fault_is_found(name):
    fault = FAULTS[name]
    simulation = Simulation(fault.kinds[2], 1, fault, fault.shares[2], fault.starts)
    assert fault.check in {finding.check for finding in check_tables(simulation)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in {"chat", "tools"} else pytest.mark.slow) for name in KINDS]
)
def test_healthy_training_stays_silent(name):
    findings = check_tables(Simulation(KINDS[name], 2))
    assert [finding for finding in findings if finding.severity != "info"] == []


@pytest.mark.slow
def test_skill_that_every_reward_follows_is_no_warning():
    findings = check_tables(Simulation(SKILL.kinds[0], 3, SKILL))
    assert [finding for finding in findings if finding.severity != "info"] == []


def test_every_check_is_reached_by_a_fault():
    checks = {kind.name for kind in built_in_checks()}
    elsewhere = {"rollouts-lost", "turns-continue", "answers-same-opening", "prompts-without-signal"}
    assert checks == {fault.check for fault in FAULTS.values()} | elsewhere
