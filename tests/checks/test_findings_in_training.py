"""Findings while training: each is logged, stored and alerted once, and a bad check costs itself alone."""

from __future__ import annotations

import logging
import time

import pyarrow as pa
import pytest
from rollout_hookspecs import Finding, Rollout, hookimpl

from rollout_plugins import Check, RolloutPluginCallback, RolloutRecorder, open_run
from rollout_plugins.engine import findings as engine_findings


class Shouting(Check):
    """An answer is in capitals."""

    name = "shouting"
    columns = ("completion",)
    advice = "Ask politely."

    def look(self, table, step, split):
        self.observe(table.num_rows)
        for row, messages in zip(table["id"].to_pylist(), table["completion"].to_pylist(), strict=True):
            if messages and messages[-1]["content"].isupper():
                yield self.finding("shouts", f"shouts at {split} step {step}", "severe", steps=[step], rollouts=[row])

    def look_at_log(self, step, values):
        if values.get("loss", 0) > 9:
            yield self.finding("large loss", f"loss {values['loss']} at step {step}", steps=[step])


class Sink:
    """Shows the alerts that it was given."""

    def __init__(self):
        self.alerts = []

    @hookimpl
    def export_traces(self, traces):
        pass

    def alert(self, title, text):
        self.alerts.append((title, text))


def answers(*texts):
    return [Rollout(id="", completion=({"role": "assistant", "content": text},), reward=1.0) for text in texts]


def record(folder, *plugins, steps=(("a", "b"), ("A", "b"), ("A", "B")), **options):
    with RolloutRecorder([*plugins], dir=folder, **options) as recorder:
        for step, texts in enumerate(steps):
            recorder.record(step, answers(*texts))
    return open_run(folder)


def found_by(run, name="shouting"):
    return [finding for finding in run.findings if finding.check == name]


def test_a_new_finding_is_logged_alerted_and_stored_once(tmp_path, caplog):
    sink = Sink()
    run = record(tmp_path, Shouting(), sink)
    (finding,) = found_by(run)
    assert (finding.text, finding.severity, finding.advice) == ("shouts at train step 1", "severe", "Ask politely.")
    assert [rollout.completion[0]["content"] for rollout in map(run.get, finding.rollouts)] == ["A"]
    (line,) = [record for record in caplog.records if "shouts" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        f"severe: shouts at train step 1. See rollouts show {run.dir} --id {finding.rollouts[0]}"
    )
    ((title, text),) = [alert for alert in sink.alerts if "shouts" in alert[0]]
    assert title == "severe: shouts"
    assert text.startswith("shouts at train step 1\nrollouts show ")
    assert run.health.warnings == {}


def test_the_rollouts_of_a_finding_are_marked(tmp_path):
    run = record(tmp_path, Shouting())
    marked = list(run.rollouts(where="findings.shouting is not null"))
    assert [rollout.step for rollout in marked] == [1]
    assert marked[0].extra["findings.shouting"] == "shouts at train step 1"


def test_a_resumed_attempt_does_not_report_a_finding_again(tmp_path, caplog):
    sink = Sink()
    for _ in range(2):
        record(tmp_path, Shouting(), sink, run_id="same")
    assert len(found_by(open_run(tmp_path))) == 1
    assert len([alert for alert in sink.alerts if "shouts" in alert[0]]) == 1
    assert sum("shouts" in record.getMessage() for record in caplog.records) == 1


def test_two_ranks_report_a_finding_once(tmp_path, caplog):
    for rank in range(2):
        record(tmp_path, Shouting(), run_id="same", rank=rank, world_size=2)
    assert len(found_by(open_run(tmp_path))) == 1
    assert sum("shouts" in record.getMessage() for record in caplog.records) == 1


def test_the_next_run_reports_it_again(tmp_path):
    check = Shouting()
    first, second = (record(tmp_path / name, check) for name in ("a", "b"))
    assert len(found_by(first)) == len(found_by(second)) == 1


def test_findings_in_the_log_of_a_real_training_are_stored(tmp_path):
    from rig import make

    class Norm(Check):
        """The gradient is not 0."""

        name = "norm"

        def look_at_log(self, step, values):
            if "loss" in values:
                self.observe(1)
                yield self.finding("logged", f"loss is logged at step {step}", "info", steps=[step])

    trainer = make(tmp_path, max_steps=2)
    trainer.add_callback(RolloutPluginCallback([Norm(), Shouting()]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [finding.steps for finding in found_by(run, "norm")] == [[1]]
    verdicts = {verdict.check: verdict for verdict in run.check(plugins=[Norm(), Shouting()]).verdicts}
    assert verdicts["norm"].verdict == "found"
    assert (verdicts["shouting"].verdict, verdicts["shouting"].rollouts) == ("clear", len(run))


class Broken(Check):
    """A check that fails."""

    name = "broken"

    def look(self, table, step, split):
        self.observe(table.num_rows)
        raise ZeroDivisionError


def test_a_check_that_raises_costs_itself_alone(tmp_path):
    run = record(tmp_path, Broken(), Shouting())
    assert run.health.plugin_errors == {"broken": 3}
    assert len(found_by(run)) == 1
    assert len(run) == 6


def test_a_check_that_hangs_costs_itself_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.5")

    class Hangs:
        name = "hangs"

        @hookimpl
        def check_rollouts(self):
            time.sleep(20)

    started = time.monotonic()
    run = record(tmp_path, Hangs(), Shouting())
    assert time.monotonic() - started < 15
    assert any("'hangs'" in text and "rest of the run" in text for text in run.health.warnings)
    assert len(found_by(run)) == 1
    assert len(run) == 6


def test_a_check_that_is_slow_is_disabled_and_says_that_it_runs_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_findings, "FREE_SECONDS", 0.05)

    class Slow(Shouting):
        """A slow check."""

        name = "slow"

        def look(self, table, step, split):
            time.sleep(0.1)
            return super().look(table, step, split)

    run = record(tmp_path, Slow(), Shouting())
    assert any("'slow'" in text and "rollouts check" in text for text in run.health.warnings)
    assert len(found_by(run)) == 1
    assert found_by(run, "slow") == []
    assert [finding.check for finding in run.check(plugins=[Slow()]).findings if finding.title == "shouts"] == [
        "slow",
        "shouting",
    ]


@pytest.mark.parametrize(
    "result",
    [
        "text",
        [3],
        [Finding(check="c", title="t", text="")],
        [Finding(check="c", title="t", text="x", severity="bad")],
        [Finding(check="c", title="t", text="x", rollouts="r1")],
        [Finding(check="c", title="t", text="x", steps=["1"])],
    ],
)
def test_what_is_not_a_finding_counts_as_a_failure_of_its_plugin(tmp_path, result):
    class Wrong:
        name = "wrong"

        @hookimpl
        def check_rollouts(self):
            return result

    run = record(tmp_path, Wrong())
    assert run.health.plugin_errors == {"wrong": 3}
    assert found_by(run, "c") == []


def test_hostile_texts_in_a_finding_survive_and_break_no_reader(tmp_path, capsys):
    from rollout_plugins.cli.main import main

    class Odd:
        name = "odd"

        @hookimpl
        def check_rollouts(self, table):
            ids = [*table["id"].to_pylist(), "no such \udcff rollout"]
            return [
                Finding(check="a.b'\"c\0", title="\x1b[31mred\udcff", text="<img>\x1b]0;x\x07\u202e", rollouts=ids)
            ]

    run = record(tmp_path, Odd())
    (finding,) = [finding for finding in run.findings if finding.title.endswith("red\ufffd") or "red" in finding.title]
    assert len(finding.rollouts) == 3
    assert "<img>" not in run._repr_html_()
    assert main(["stats", str(run.dir)]) == 0
    assert main(["check", str(run.dir)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_checks_get_the_columns_of_the_store_and_no_rollout_is_built_for_them(tmp_path, monkeypatch):
    from rollout_plugins.content.rollout_columns import RolloutColumns

    class Columns(Check):
        """Looks at one column."""

        name = "columns"
        columns = ("finish",)

        def look(self, table, step, split):
            self.observe(table.num_rows)
            assert isinstance(table, pa.Table)
            assert {"id", "finish", "reward", "group"} <= set(table.column_names)
            assert "prompt" not in table.column_names
            return ()

    built = []
    original = RolloutColumns.__getitem__
    monkeypatch.setattr(
        RolloutColumns,
        "__getitem__",
        lambda self, key: (built.append(key) if isinstance(key, int) else None, original(self, key))[1],
    )
    run = record(tmp_path, Columns(), disable=["images"])
    assert run.health.plugin_errors == {}
    assert built == []
