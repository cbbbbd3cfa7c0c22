"""Which rollouts a sink gets, and how long anybody waits for it."""

import threading

from rig import make
from store_rig import until
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run


class Sink:
    def __init__(self, scope="global", held=None):
        self.name = f"sink-{scope}"
        self.scope = scope
        self.held = held
        self.got = []

    @hookimpl
    def export_traces(self, traces, step):
        if self.held:
            self.held.wait(600)
        self.got += [trace.rollout_id for trace in traces]


def test_a_streaming_sink_gets_everything_and_the_others_get_the_selection(tmp_path):
    capped, streaming = Sink(), Sink("stream")
    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(RolloutPluginCallback(["cap", capped, streaming], config={"cap": {"max_per_step": 2}}))
    trainer.train()
    stored = [rollout.id for rollout in open_run(tmp_path / "out").rollouts()]
    assert streaming.got == stored
    assert len(stored) == 12
    assert len(capped.got) == 6
    assert set(capped.got) < set(stored)


def test_a_hanging_sink_is_waited_for_once_and_its_missed_rollouts_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.engine.pipeline.SINK_SECONDS", 1.0)
    monkeypatch.setattr("rollout_plugins.engine.pipeline.SINK_SHARE", 0.0)
    for_good = threading.Event()
    hanging, healthy = Sink(held=for_good), Sink("rank")
    callback = RolloutPluginCallback([hanging, healthy])

    class Waits(TrainerCallback):
        def on_train_end(self, *args, **kwargs):
            until(
                lambda: (
                    len(healthy.got) == 12 and not callback._shared.current.pipeline._lifecycle.outboxes[1].is_stuck
                )
            )

    trainer = make(tmp_path, max_steps=3)
    trainer.add_callback(Waits())
    trainer.add_callback(callback)
    trainer.train()
    assert hanging.got == []  # training ended before the sink was done
    run = open_run(tmp_path / "out")
    assert len(run) == len(healthy.got) == 12
    assert (run.health.drops, run.health.unsent) == ({}, {"sink-global": 12})
    for_good.set()


def test_reasons_for_rollouts_of_other_ranks_do_not_accumulate_in_memory(tmp_path, monkeypatch):
    from rollout_hookspecs import Batch

    from rollout_plugins import hookimpl, open_run
    from rollout_plugins.engine import run_storage as storage
    from rollout_plugins.engine.discover import Plugins
    from rollout_plugins.engine.pipeline import Pipeline
    from rollout_plugins.testing import make_rollout, make_run

    class Sink:
        @hookimpl
        def export_traces(self, traces):
            pass

    def both():
        return [make_rollout(rank=rank, index=rank) for rank in range(2)]

    monkeypatch.setattr(storage, "SELECTION_BATCH", 2)
    recording = Pipeline(Plugins([Sink()], autoload=False), sync=True)
    recording.start(make_run(id="run", dir=str(tmp_path / "run"), rank=0, world_size=2))
    for step in range(1, 6):
        recording.submit(Batch(build=both, step=step, count=1, gathered=True))
    shards = list((tmp_path / "run" / "annotations" / "selection").glob("*.parquet"))
    assert len(shards) == 2
    recording.close()
    told = open_run(tmp_path).sql("select count(*) as n from annotations.selection").to_pylist()
    assert told == [{"n": 5}]
