"""A plugin that must see everything: what it could not see is neither stored nor sent, and counted."""

import time

import pytest
from rig import make

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.plugins.redact import Redact
from rollout_plugins.store.read import find_runs


class Sink:
    def __init__(self):
        self.got = []

    @hookimpl
    def export_traces(self, traces):
        self.got += traces


def test_nothing_passes_a_redact_whose_own_function_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_HANG_SECONDS", "0.3")
    sink = Sink()
    trainer = make(tmp_path, ["my key is secret"], max_steps=3)
    trainer.add_callback(RolloutPluginCallback([Redact(function=lambda text: time.sleep(5)), sink]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert len(run) == len(sink.got) == 0
    assert run.drops["dropped_by:redact"] + run.drops.get("not_seen_by_required_plugin", 0) == 12


class Picky:
    name = "picky"

    def __init__(self, *, required):
        self.required = required

    @hookimpl
    def on_rollout(self, rollout):
        if rollout.index == 1:
            raise ValueError("not this one")


@pytest.mark.parametrize(("required", "stored"), [(True, 3), (False, 4)])
def test_a_failure_of_a_required_plugin_drops_that_rollout_alone(tmp_path, required, stored):
    trainer = make(tmp_path)
    trainer.add_callback(RolloutPluginCallback([Picky(required=required)]))
    trainer.train()
    run = open_run(tmp_path / "out")
    assert len(run) == stored
    assert run.drops.get("dropped_by:picky", 0) == 4 - stored


def test_a_required_plugin_that_was_taken_out_of_a_run_is_there_in_the_next(tmp_path):
    """Otherwise the next run would store what nobody searched for secrets."""
    broken = [True]

    def careful(text):
        if broken[0]:
            time.sleep(5)
        return text.replace("secret", "[GONE]")

    trainer = make(tmp_path, ["my key is secret"])
    trainer.add_callback(RolloutPluginCallback([Redact(function=careful)], end_seconds=3))
    trainer.train()
    broken[0] = False
    trainer.train()
    first, second = (open_run(path) for path in find_runs(tmp_path / "out" / "rollouts"))
    assert (len(first), len(second)) == (0, 4)
    assert {rollout.completion[0]["content"] for rollout in second.rollouts()} == {"my key is [GONE]"}
