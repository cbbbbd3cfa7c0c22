"""Alerts of your own: rules, where their messages go, and what happens when they cannot be delivered."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rollout_hookspecs import Finding, Rollout, hookimpl

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.alerts import Alerts, targets
from rollout_plugins.plugins.alerts.numbers import NUMBERS
from rollout_plugins.plugins.redact import Redact

KEY = "sk-" + "a1B2" * 8


@contextmanager
def server(status=200):
    """Run a web server that collects the JSON it is sent."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    web = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{web.server_port}/hook/{KEY}", received
    finally:
        web.shutdown()
        web.server_close()


def record(folder, shares, *plugins, **options):
    """Record one step for each share of truncated rollouts, and return the run."""
    with RolloutRecorder([*plugins], dir=folder, **options) as recorder:
        for step, share in enumerate(shares):
            finish = ["length" if place < 10 * share else "stop" for place in range(10)]
            rollouts = [Rollout(id="", finish=each, reward=float(place)) for place, each in enumerate(finish)]
            recorder.record(step, rollouts, group_size=10)
    return open_run(folder)


def test_a_webhook_gets_one_message_with_the_sentence_and_the_command(tmp_path):
    with server() as (url, received):
        run = record(tmp_path, [0, 0.4, 0.5, 0.6, 0.7], Alerts({"truncated > 0.3 for 3 steps": f"webhook:{url}"}))
    (message,) = received
    assert message["title"] == "warning: truncated > 0.3 for 3 steps"
    assert message["text"] == "truncated is 0.6 at step 3, and was > 0.3 for 3 steps"
    assert message["steps"] == [1, 2, 3]
    assert message["command"].startswith("rollouts show ")
    assert "finish = 'length'" in message["command"]
    (finding,) = [finding for finding in run.findings if finding.check == "alerts"]
    assert finding.text == message["text"]


def test_the_evidence_command_shows_the_rollouts_that_broke_the_rule(tmp_path, capsys):
    import shlex

    from rollout_plugins.cli.main import main

    with server() as (url, received):
        record(tmp_path, [0.4], Alerts({"truncated > 30%": f"webhook:{url}"}))
    words = shlex.split(received[0]["command"])
    assert main([*words[1:], "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [rollout["finish"] for rollout in shown] == ["length"] * 4


def test_slack_gets_its_own_json(tmp_path):
    with server() as (url, received):
        record(tmp_path, [0.5], Alerts({"truncated >= 0.5": f"slack:{url}"}))
    assert list(received[0]) == ["text"]
    assert "truncated is 0.5 at step 0" in received[0]["text"]


def test_a_command_gets_title_and_text_as_words_and_no_shell_reads_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('|'.join(sys.argv[2:]))")
    rule = f"command:{sys.executable} {script} {tmp_path / 'out.txt'}"
    record(tmp_path / "run", [0.5], Alerts({"truncated > 0.3": rule}))
    title, text = (tmp_path / "out.txt").read_text().split("|")
    assert title == "warning: truncated > 0.3"
    assert text.startswith("truncated is 0.5 at step 0 (> 0.3)\nrollouts show ")


def test_a_rule_that_holds_again_sends_again_and_no_more_often_than_allowed(tmp_path):
    texts = []
    collect = lambda title, text: texts.append(text)  # noqa: E731
    record(tmp_path / "a", [0.4, 0, 0.5, 0.6, 0, 0.7], Alerts({"truncated > 0.3": collect}, every=0))
    assert [text.split()[2] for text in texts] == ["0.4", "0.5", "0.7"]
    texts.clear()
    record(tmp_path / "b", [0.4, 0, 0.5, 0.6, 0, 0.7], Alerts({"truncated > 0.3": collect}))
    assert [text.split()[2] for text in texts] == ["0.4"]


def test_a_message_says_how_many_were_held_back(tmp_path, monkeypatch):
    texts, moments = [], iter([0.0, 1.0, 2.0, 1000.0])
    alerts = Alerts({"truncated > 0.3": lambda title, text: texts.append(text)}, every=600)
    monkeypatch.setattr("rollout_plugins.plugins.alerts.time", type("Clock", (), {"monotonic": lambda: next(moments)}))
    record(tmp_path, [0.4, 0, 0.5, 0, 0.6, 0, 0.7], alerts)
    assert ["more since the last message" in text for text in texts] == [False, True]
    assert "(2 more since the last message)" in texts[1]


def test_a_delivery_that_fails_is_counted_in_the_run_and_no_secret_is_shown(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(targets, "ATTEMPTS", 1)
    with server(status=500) as (url, received):
        run = record(tmp_path, [0.4, 0, 0.4, 0, 0.4], Alerts({"truncated > 0.3": f"webhook:{url}"}, every=0))
    assert len(received) == 3
    assert run.health.warnings == {"an alert did not reach webhook:127.0.0.1: it answered 500": 3}
    assert KEY not in caplog.text
    assert len(run) == 50


def test_a_target_that_hangs_costs_the_training_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.plugins.alerts.END_SECONDS", 0.2)
    release = threading.Event()
    started = time.monotonic()
    run = record(tmp_path, [0.4] * 3, Alerts({"truncated > 0.3": lambda *_: release.wait(60)}))
    assert time.monotonic() - started < 30
    release.set()
    assert len(run) == 30
    assert any("not delivered yet" in text for text in run.health.warnings)


class Leaks:
    """A check that quotes a secret."""

    @hookimpl
    def check_rollouts(self):
        return [Finding(check="leaks", title=f"said {KEY}", text=f"it said {KEY}", severity="severe")]


def test_findings_of_checks_are_sent_without_secrets_and_once(tmp_path):
    with server() as (url, received):
        rules = {"severe findings": f"webhook:{url}", "truncated > 2": f"slack:{url}"}
        run = record(tmp_path, [0.1] * 4, Leaks(), Redact(), Alerts(rules))
    (message,) = received
    assert message["check"] == "leaks"
    assert KEY not in json.dumps(message)
    assert KEY not in repr(run.findings)


def test_a_rule_about_findings_leaves_out_what_is_less_severe(tmp_path):
    class Mild:
        @hookimpl
        def check_rollouts(self):
            return [Finding(check="mild", title="mild", text="mild", severity="warning")]

    severe, warnings = [], []
    rules = {"severe findings": lambda *words: severe.append(words), "findings": lambda *words: warnings.append(words)}
    record(tmp_path, [0.1] * 3, Mild(), Alerts(rules))
    assert (len(severe), len(warnings)) == (0, 1)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("truncatd > 0.3", "did you mean 'truncated'"),
        ("truncated = 0.3", "cannot be read"),
        ("truncated > much", "'much', which is not a number"),
        ("truncated > 0.3 for 0 steps", "0 steps"),
        ("any findings", "cannot be read"),
        (3, "rule 3 is not a text"),
        ("eval/log/loss > 3", "not a number of a step"),
    ],
)
def test_a_wrong_rule_is_refused_when_it_is_loaded_and_names_what_there_is(rule, said):
    with pytest.raises(SetupError) as error:
        Alerts({rule: print})
    assert said in str(error.value)


def test_a_wrong_name_lists_all_numbers():
    with pytest.raises(SetupError) as error:
        Alerts({"length > 3": print})
    assert all(name in str(error.value) for name in NUMBERS)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("webhook:not-a-url", "needs a URL"),
        ("https://hooks.slack.com/x", "target 'https' is none of webhook:URL"),
        ("email:me", "target 'email' is none of"),
        ("command:", "names no program"),
        ("webhook:https://x/$NOT_SET_ANYWHERE", "environment variable NOT_SET_ANYWHERE"),
        (3, "target int"),
    ],
)
def test_a_wrong_target_is_refused_when_it_is_loaded(target, said):
    with pytest.raises(SetupError) as error:
        Alerts({"truncated > 0.3": target})
    assert said in str(error.value)


def test_every_fault_of_the_options_is_in_one_error():
    with pytest.raises(SetupError) as error:
        Alerts({"a > 1": "b:c", "truncated > x": print}, every=-1)
    assert all(text in str(error.value) for text in ("'a'", "'b'", "'x'", "every=-1"))


def test_a_variable_of_the_environment_is_filled_in(monkeypatch, tmp_path):
    with server() as (url, received):
        monkeypatch.setenv("HOOK", url)
        record(tmp_path, [0.5], Alerts({"truncated > 0.3": ["webhook:$HOOK", "slack:${HOOK}"]}))
    assert len(received) == 2


def test_a_reward_that_the_run_does_not_have_is_warned_of(tmp_path):
    run = record(tmp_path, [0.5], Alerts({"reward/speed < 0": print}), reward_names=["correct"])
    assert any("the rewards of this run are correct" in text for text in run.health.warnings)


def test_rules_about_rewards_evaluations_and_the_log(tmp_path):
    texts = []
    rules = [
        "reward/brief < 0",
        "eval/reward > 5",
        "reward_std >= 1",
        "no_spread > 0.5",
        "not_finite > 0",
        "empty > 0",
    ]
    alerts = Alerts(dict.fromkeys(rules, lambda title, text: texts.append(text.partition("\n")[0])))
    with RolloutRecorder([alerts], dir=tmp_path) as recorder:
        rollouts = [Rollout(id="", rewards={"brief": -1.0, "x": float("nan")}, reward=float(2 * n)) for n in range(4)]
        recorder.record(1, rollouts, group_size=4)
        recorder.record(1, [Rollout(id="", reward=7.0)], split="eval")
    assert sorted(text.partition(" (")[0] for text in texts) == [
        "empty is 1 at step 1",
        "eval reward is 7 at step 1",
        "not_finite is 1 at step 1",
        "reward/brief is -1 at step 1",
        "reward_std is 2.236 at step 1",
    ]
