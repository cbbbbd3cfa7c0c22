"""What tests of the pipeline and the store share: a run in a folder, batches for it, and equality of records."""

from __future__ import annotations

import gc
import time
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
from values import same

from rollout_plugins import Batch, Rollout, Run, hookimpl, open_run
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline
from rollout_plugins.reading.find_runs import find_runs
from rollout_plugins.store.arrow_rollouts import from_rows
from rollout_plugins.store.write import RunWriter

STAMPED = ("id", "run_id", "attempt", "split", "step", "generation")


def run_in(folder, **facts):
    return Run(**{"id": "r1", "dir": str(folder / "r1"), "reward_names": ("half",), **facts})


def rollouts(count=4, **values):
    said = {"prompt": ({"role": "user", "content": "hello"},), "completion": ({"role": "assistant", "content": "hi"},)}
    plain = [Rollout(id="", index=i, rewards={"half": i / 2}, reward=i / 2, **said) for i in range(count)]
    return [replace(rollout, **values) for rollout in plain]


def batch(made=None, *, step=1, split="train", size=1000, count=None, build=None):
    made = rollouts() if made is None else made
    return Batch(
        build=build or (lambda: made), split=split, step=step, count=len(made) if count is None else count, bytes=size
    )


def pipeline(*plugins, autoload=False, **options):
    return Pipeline(Plugins(plugins, autoload=autoload), **options)


def started(folder, *plugins, **options):
    made = pipeline(*plugins, **options)
    made.start(run_in(folder))
    return made


def record(folder, *made, plugins=(), **options):
    """Send rollouts through a pipeline, a generation for each list, and read the run back."""
    line = started(folder, *plugins, **options)
    for step, some in enumerate(made, 1):
        line.submit(batch(some, step=step))
    assert line.drain(600)
    line.close()
    return open_run(folder)


def written(folder, made, **facts):
    """Write rollouts with the writer alone and read them back."""
    run = run_in(folder, **facts)
    writer = RunWriter(run)
    writer.write("train", [replace(rollout, id=str(i), index=i) for i, rollout in enumerate(made)])
    writer.close()
    found = {rollout.id: rollout for rollout in open_run(folder).rollouts(tokens=True)}
    assert len(found) == len(made)
    return [found[str(i)] for i in range(len(made))], writer.lost


def runs(folder):
    """The runs of the trainer whose output folder is `out` in this one."""
    return [open_run(path) for path in find_runs(folder / "out-rollouts")]


def through_a_file(made):
    """The same without a reader around it, for hundreds of examples."""
    with TemporaryDirectory() as folder:
        writer = RunWriter(run_in(Path(folder)))
        writer.write("train", made)
        writer.close()
        (file,) = Path(folder).rglob("*.parquet")
        return list(from_rows(pq.read_table(file, partitioning=None).to_pylist())), writer.lost


def differences(one, other, ignore=STAMPED):
    """Fields in which two rollouts are not the same, types included."""
    return {
        f.name: (getattr(one, f.name), getattr(other, f.name))
        for f in fields(Rollout)
        if f.name not in ignore and not same(getattr(one, f.name), getattr(other, f.name))
    }


def until(condition, seconds=600.0):
    """Wait for something that another thread or process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def collected(condition):
    """Wait until garbage was collected: another thread may be at it, and then nothing is done here."""
    until(lambda: gc.collect() is not None and condition())


class Sink:
    """Keeps what it is sent; does whatever it is told to."""

    name = "sink"

    def __init__(self, act=lambda: None, name="sink"):
        self.act = act
        self.name = name
        self.ids = []
        self.events = []

    @hookimpl
    def on_run_start(self, run):
        self.events.append("start")

    @hookimpl
    def export_traces(self, traces):
        self.act()
        self.ids += [trace.rollout_id for trace in traces]

    @hookimpl
    def on_run_end(self, run):
        self.events.append("end")


class Count:
    """A plugin whose metric is there for each log, never a moment later."""

    @hookimpl
    def rollout_metrics(self, rollouts, step):
        return {"count": len(rollouts)}
