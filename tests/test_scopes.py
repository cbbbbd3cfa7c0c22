"""Which rollouts a sink gets, and how long anybody waits for it."""

import time

from rig import make

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run


class Sink:
    def __init__(self, scope="global", hang=0.0):
        self.name = f"sink-{scope}"
        self.scope = scope
        self.hang = hang
        self.got = []

    @hookimpl
    def export_traces(self, traces, step):
        time.sleep(self.hang)
        self.got += [trace.rollout_id for trace in traces]


def test_a_streaming_sink_gets_everything_and_the_others_what_was_selected(tmp_path):
    capped, streaming = Sink(), Sink("stream")
    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback(["cap", capped, streaming], config={"cap": {"max_per_step": 2}}))
    trainer.train()
    stored = [rollout.id for rollout in open_run(tmp_path / "out").rollouts()]
    assert streaming.got == stored
    assert len(stored) == 12
    assert len(capped.got) == 6
    assert set(capped.got) < set(stored)


def test_a_hanging_sink_is_waited_for_once_and_what_it_missed_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.pipeline.SINK_SECONDS", 1.0)
    hanging, healthy = Sink(hang=60), Sink("rank")
    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback([hanging, healthy]))
    started = time.monotonic()
    trainer.train()
    assert time.monotonic() - started < 20
    run = open_run(tmp_path / "out")
    assert len(run) == len(healthy.got) == 12
    assert run.drops["sink_failed:sink-global"] == 12
