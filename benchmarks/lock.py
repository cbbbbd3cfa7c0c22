"""What recording keeps the interpreter's lock for, and all its work on one processor, beside TRL's own table.

    python -m benchmarks.lock

A step that never leaves Python is slowed by whatever runs under the lock, on whatever thread. `under the lock` is the
time of the call on the training thread, and then the time that a counting thread waits for the lock until everything
is in the store. Linux says how long a thread ran and how long it stood in line for a processor; the rest is waiting.
So other programs on the machine do not count. `total CPU` is a share of all that a run of four batches takes from its
begin until it is closed and on disk, on one processor: two virtual ones that share a core make whatever runs side by
side look dearer.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rollout_hookspecs import hookimpl

from benchmarks import batches, capture, replay
from benchmarks.batches import Batch
from benchmarks.capture import ALONE, OURS, SCRATCH, TABLE, Probe
from benchmarks.measure import Clock, goal, main, median, seconds, show, table

PLUGIN = "with a trivial on_rollout"
TIMES, BATCHES = 9, 4
BATCH = {"rollouts": 256, "turns": 6, "length": 1250}


class Trivial:
    """The least that a third party's plugin can do."""

    @hookimpl
    def on_rollout(self, rollout: Any) -> None:
        return None


class Locked(Probe):
    """Measures what capture's ways do under the lock, instead."""

    def start(self) -> None:
        gc.collect(1)
        self.began = _undisturbed()

    def returned(self) -> None:
        self.figures["under the lock"] = _undisturbed() - self.began

    def without(self, action: Callable[[], object]) -> None:
        rows = []
        for _ in range(5):
            began = _undisturbed()
            action()
            rows.append(_undisturbed() - began)
        self.less = {"under the lock": median(rows)}

    def durable(self, folder: Path) -> None: ...

    def done(self, folder: Path, before: int = 0) -> None:
        for name, value in self.less.items():
            self.figures[name] = max(0.0, self.figures[name] - value)


def _undisturbed() -> float:
    """Wall time without that in which this thread stood in line for a processor."""
    return time.perf_counter() - _scheduled()[1]


def _scheduled() -> tuple[float, float]:
    ran, stood, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran) / 1e9, int(stood) / 1e9


def locked_out(work: Callable[[], object]) -> float:
    """Seconds that this thread, counting, waits for the lock until the work is done elsewhere."""
    done = threading.Event()
    threading.Thread(target=lambda: (work(), done.set())).start()
    began, before, number = time.perf_counter(), sum(_scheduled()), 0
    while not done.is_set():
        for _ in range(2000):
            number += 1
    return max(0.0, time.perf_counter() - began - (sum(_scheduled()) - before))


def ours(trainer: Any, batch: Batch, folder: Path, probe: Probe, **options: Any) -> None:
    """As in capture; what the worker keeps the lock for until it is done counts too."""
    from rollout_plugins import RolloutPluginCallback

    probe.without(partial(trainer._generate_and_score_completions, batch.inputs))
    callback = RolloutPluginCallback(dir=folder, trainer=trainer, **options)
    trainer.add_callback(callback)
    trainer.begin()
    callback.flush(60)
    probe.start()
    trainer._generate_and_score_completions(batch.inputs)
    probe.returned()
    probe.figures["under the lock"] += locked_out(lambda: callback.flush(600))
    trainer.end()
    trainer.remove_callback(callback)
    probe.done(folder)


WAYS: dict[str, Callable[..., None]] = {
    TABLE: capture.trl,
    OURS: ours,
    ALONE: partial(ours, autoload=False),
    PLUGIN: partial(ours, autoload=False, plugins=[Trivial()]),
}


def a_run_of_ours(trainer: Any, batch: Batch, folder: Path, probe: Probe, **options: Any) -> None:
    """A run of several batches, until its last byte is sealed and its folder closed; the figures are of one batch."""
    from rollout_plugins import RolloutPluginCallback

    probe.without(partial(trainer._generate_and_score_completions, batch.inputs))
    callback = RolloutPluginCallback(dir=folder, trainer=trainer, **options)
    trainer.add_callback(callback)
    probe.start()
    trainer.begin()
    thread = 0.0
    for _ in range(BATCHES):
        clock = Clock()
        trainer._generate_and_score_completions(batch.inputs)
        thread += clock.thread
        callback.flush(600)
    trainer.end()
    probe.figures = {
        "thread CPU": max(0.0, thread / BATCHES - probe.less["thread CPU"]),
        "total CPU": max(0.0, probe._clock.cpu / BATCHES - probe.less["total CPU"]),
    }
    trainer.remove_callback(callback)


ON_ONE: dict[str, Callable[..., None]] = {
    TABLE: capture.trl,
    OURS: a_run_of_ours,
    ALONE: partial(a_run_of_ours, autoload=False),
    PLUGIN: partial(a_run_of_ours, autoload=False, plugins=[Trivial()]),
}


def figures(name: str, trainer: Any, batch: Batch) -> dict[str, float]:
    """In a process of its own: the lock first, then all CPU on one processor."""

    def measure() -> dict[str, float]:
        gc.collect()
        rows = [_once(WAYS[name], Locked(), trainer, batch) for _ in range(TIMES + 1)][1:]
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        more = [_once(ON_ONE[name], Probe(), trainer, batch) for _ in range(TIMES + 1)][1:]
        # Time in line can be taken off too often where threads take turns, so the middle; CPU time only ever grows.
        found = {"under the lock": median(row["under the lock"] for row in rows)}
        return found | {key: min(row[key] for row in more) for key in ("thread CPU", "total CPU")}

    return capture.apart(measure)


def _once(way: Callable[..., None], probe: Probe, trainer: Any, batch: Batch) -> dict[str, float]:
    way(trainer, batch, SCRATCH / f"{os.getpid()}-{time.monotonic_ns()}", probe)
    return probe.figures


def compare(trainer: Any, **shape: int) -> None:
    batch = batches.make(**shape)
    replay.load(trainer, batch)
    found = {name: figures(name, trainer, batch) for name in WAYS}
    text = f"{shape['rollouts']} rollouts of {shape['turns']} turns, {shape['length']} characters a message"
    kinds = ("under the lock", "thread CPU", "total CPU")
    show(table(text, ("", *kinds), [[name, *(seconds(own[kind]) for kind in kinds)] for name, own in found.items()]))
    limits = {"under the lock": (1.0, 0.8), "total CPU": (2.0, 1.6), "thread CPU": (0.15, 0.15)}
    rows = [
        goal(f"{kind}, {name}, of {TABLE}", found[name][kind] / found[TABLE][kind], limits[kind][at])
        for kind in limits
        for at, name in enumerate((OURS, ALONE))
    ]
    show(table(f"Goals: {text}", ("goal", "measured", "wanted", ""), rows))


def scale(trainer: Any, title: str, shapes: list[dict[str, int]], per: Callable[[dict[str, int]], int]) -> None:
    """Whether the cost of one is the same in large batches as in small ones."""
    rows = []
    for shape in shapes:
        batch = batches.make(**shape)
        replay.load(trainer, batch)
        own = figures(OURS, trainer, batch)
        each = [seconds(own[kind] / per(shape)) for kind in ("under the lock", "thread CPU", "total CPU")]
        rows.append([f"{shape['rollouts']} x {shape['turns']} turns", *each])
    show(table(title, ("batch", "under the lock", "thread CPU", "total CPU"), rows))


def run() -> None:
    SCRATCH.mkdir(exist_ok=True)
    trainer = replay.trainer(SCRATCH)
    compare(trainer, **BATCH)
    compare(trainer, rollouts=512, turns=4, length=2000)
    compare(trainer, rollouts=512, turns=1, length=4000)
    wide = [{"rollouts": n, "turns": 2, "length": 400} for n in (64, 512, 4096, 16_384)]
    scale(trainer, "A rollout, in batches of more and more", wide, lambda shape: shape["rollouts"])
    long = [{"rollouts": 64, "turns": n, "length": 400} for n in (1, 10, 100)]
    scale(trainer, "A turn, in longer and longer rollouts", long, lambda shape: shape["rollouts"] * shape["turns"])


if __name__ == "__main__":
    main(run)
