"""`rollouts check`: what it prints for a person and a program, its exit codes, and which checks run."""

from __future__ import annotations

import json
import shlex

import pytest
from rollout_hookspecs import Drop, Finding, Rollout, Verdict, hookimpl

from rollout_plugins import Check, RolloutRecorder, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RunError

NAN = float("nan")


def record(folder, rewards, **options):
    with RolloutRecorder(dir=folder, **options) as recorder:
        for step, values in enumerate(rewards):
            rollouts = [Rollout(id="", reward=value, rewards={"judge": value}) for value in values]
            recorder.record(step, rollouts, group_size=len(values))
    return open_run(folder)


@pytest.fixture
def bad(tmp_path):
    return record(tmp_path / "bad", [[0.0, 1.0], [NAN, 1.0], [NAN, 0.5]])


@pytest.fixture
def good(tmp_path):
    return record(tmp_path / "good", [[0.0, 1.0], [0.5, 1.0]])


ONLY = ("--only", "rewards-not-finite")


def test_a_severe_finding_exits_with_4_and_a_clear_run_with_0(bad, good, capsys):
    assert main(["check", str(bad.dir), *ONLY]) == 4
    assert main(["check", str(good.dir), *ONLY]) == 0
    assert "1 of 1 check clear" in capsys.readouterr().out


def test_each_finding_has_a_command_that_shows_its_rollouts(bad, capsys):
    main(["check", str(bad.dir), *ONLY])
    printed = capsys.readouterr().out
    (command,) = [line.strip() for line in printed.splitlines() if line.startswith("  rollouts ")]
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {rollout["step"] for rollout in shown} == {1}


def test_json_is_one_object_of_findings_and_checks(bad, capsys):
    main(["check", str(bad.dir), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"findings", "checks"}
    finding = next(each for each in printed["findings"] if each["check"] == "rewards-not-finite")
    assert set(finding) >= {"check", "severity", "title", "text", "steps", "rollouts", "advice"}
    assert finding["severity"] == "severe"
    assert all(set(check) == {"name", "verdict", "rollouts", "tokens", "why"} for check in printed["checks"])
    assert {check["verdict"] for check in printed["checks"]} <= {"found", "clear", "unobserved"}


def test_several_runs_are_checked_in_turn(bad, good, capsys):
    assert main(["check", str(good.dir), str(bad.dir), *ONLY, "--json"]) == 4
    printed = json.loads(capsys.readouterr().out)
    assert [len(run["findings"]) for run in printed["runs"]] == [0, 1]
    assert [run["folder"] for run in printed["runs"]] == [str(good.dir), str(bad.dir)]


def test_fail_on_decides_which_findings_count(bad, tmp_path):
    class Mild:
        @hookimpl
        def check_run(self):
            return Verdict(check="mild", verdict="found", findings=[Finding(check="mild", title="m", text="m")])

    assert [verdict.verdict for verdict in bad.check(plugins=[Mild()], only=["mild"]).verdicts] == ["found"]
    run = record(tmp_path / "info", [[1.0, 0.0]])
    assert main(["check", str(run.dir), "--fail-on", "warning", *ONLY]) == 0
    assert main(["check", str(bad.dir), "--fail-on", "warning", *ONLY]) == 4


def test_only_and_disable_choose_checks_and_refuse_wrong_names(bad, capsys):
    assert [verdict.check for verdict in bad.check(only=["rewards-not-finite"]).verdicts] == ["rewards-not-finite"]
    assert "rewards-not-finite" not in {
        verdict.check for verdict in bad.check(disable=["rewards-not-finite"]).verdicts
    }
    assert main(["check", str(bad.dir), "--only", "rewards-not-finit"]) == 1
    assert "did you mean 'rewards-not-finite'" in capsys.readouterr().err
    with pytest.raises(RunError):
        bad.check(disable=["nothing"])


def test_a_check_without_anything_to_read_is_unobserved_and_says_what_it_needs(good, capsys):
    class Needs(Check):
        """Looks at tokens."""

        name = "needs"
        needs = ("tokens", "evaluation", "log")

        def look(self, table, step, split):
            raise AssertionError("there are no tokens")

    (verdict,) = good.check(plugins=[Needs()], only=["needs"]).verdicts
    assert verdict.verdict == "unobserved"
    assert verdict.why == "needs tokens=True; needs an evaluation; needs the trainer's log"
    from rollout_plugins.cli.check import conclusion

    (line,) = conclusion([verdict])
    assert line == f"0 of 1 check clear, 1 unobserved (needs: {verdict.why})"


def test_a_check_that_never_observes_is_not_clear(good):
    class Idle(Check):
        """Looks at nothing."""

        name = "idle"

        def look(self, table, step, split):
            return ()

    (verdict,) = good.check(plugins=[Idle()], only=["idle"]).verdicts
    assert (verdict.verdict, verdict.why) == ("unobserved", "there was nothing to look at")


def test_a_check_that_fails_is_unobserved_and_says_so(good):
    class Fails(Check):
        """Fails."""

        name = "fails"

        def look(self, table, step, split):
            self.observe(table.num_rows)
            raise ZeroDivisionError

    class FailsAtTheEnd(Fails):
        """Fails later."""

        name = "fails-at-the-end"

        def look(self, table, step, split):
            self.observe(table.num_rows)
            return ()

        def finish(self):
            raise ZeroDivisionError

    checked = good.check(plugins=[Fails(), FailsAtTheEnd()], only=["fails", "fails-at-the-end"])
    assert [verdict.verdict for verdict in checked.verdicts] == ["unobserved", "unobserved"]
    assert all("failed" in verdict.why for verdict in checked.verdicts)


def test_a_run_without_rollouts_leaves_every_check_of_rollouts_unobserved(tmp_path, capsys):
    class DropsAll:
        @hookimpl
        def on_rollout(self):
            raise Drop("for the test")

    with RolloutRecorder([DropsAll()], dir=tmp_path) as recorder:
        recorder.record(0, [Rollout(id="", reward=1.0)])
    assert main(["check", str(tmp_path), "--json", "--disable", "rollouts-lost"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {check["verdict"] for check in checks} == {"unobserved"}
    assert all(check["why"] for check in checks)


def test_findings_of_an_old_run_are_stored_when_asked_for(tmp_path, capsys):
    run = record(tmp_path, [[NAN, 1.0]], disable=["checks"])
    assert run.findings == []
    assert main(["check", str(run.dir), *ONLY]) == 4
    assert open_run(tmp_path).findings == []
    assert main(["check", str(run.dir), *ONLY, "--save"]) == 4
    stored = open_run(tmp_path)
    assert [finding.check for finding in stored.findings] == ["rewards-not-finite"]
    assert stored.count(where='findings."rewards-not-finite" is not null') == 1
    main(["check", str(run.dir), *ONLY, "--save"])
    assert len(open_run(tmp_path).findings) == 1
    assert "0 new findings stored" in capsys.readouterr().err


def test_a_finding_of_a_check_that_is_not_installed_stays_visible(tmp_path):
    class Local:
        @hookimpl
        def check_rollouts(self, step):
            return [Finding(check="local", title="mine", text="mine", steps=[step.step])]

    with RolloutRecorder([Local()], dir=tmp_path) as recorder:
        recorder.record(0, [Rollout(id="", reward=1.0)])
    checked = open_run(tmp_path).check()
    (verdict,) = [verdict for verdict in checked.verdicts if verdict.check == "local"]
    assert verdict.why == "found while training, not checked again"
    assert "mine" in [finding.title for finding in checked.findings]


def test_steps_that_a_resumed_attempt_did_again_are_not_checked(tmp_path):
    record(tmp_path, [[NAN, 1.0], [NAN, 1.0]], run_id="same", disable=["checks"])
    with RolloutRecorder(dir=tmp_path, run_id="same", resumed_from=0, disable=["checks"]) as recorder:
        recorder.record(1, [Rollout(id="", reward=1.0, rewards={"judge": 1.0})])
    (finding,) = open_run(tmp_path).check(only=["rewards-not-finite"]).findings
    assert list(finding.steps) == [0]


def test_stats_names_findings_first(bad, capsys):
    assert main(["stats", str(bad.dir)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("severe: judge: NaN")
    assert any("rollouts check" in line for line in lines)


def test_the_last_line_of_a_training_names_findings(bad, capfd, tmp_path):
    record(tmp_path / "again", [[NAN, 1.0]])
    last = capfd.readouterr().err.splitlines()[-1]
    assert "1 severe" in last
    assert "rollouts check" in last


def test_an_infinite_total_that_no_function_explains_is_found_too(tmp_path):
    with RolloutRecorder(dir=tmp_path) as recorder:
        recorder.record(4, [Rollout(id="", reward=float("-inf")), Rollout(id="", reward=1.0)])
    (finding,) = open_run(tmp_path).check(only=["rewards-not-finite"]).findings
    assert finding.text == "reward: infinite in 1 of 2 rollouts of train step 4"
    assert len(finding.rollouts) == 1


def test_a_total_that_a_function_explains_is_reported_once(bad):
    titles = [finding.title for finding in bad.check(only=["rewards-not-finite"]).findings]
    assert titles == ["reward judge is NaN"]
