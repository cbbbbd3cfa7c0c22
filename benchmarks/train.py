"""Training with the callback and without, in alternation; then ten thousand steps through the real pipeline.

    python -m benchmarks.train [--steps 40] [--rounds 3] [--long 10000]

A tiny model on the CPU takes a fraction of a second a step, so recording has to hide in far less than it would in
real training. The ratio is of medians over all steps of all rounds; `CPU ratio` is the same of process CPU time, which
other programs on the machine disturb less. `once a run` is what starting and ending take longer with the callback.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_hookspecs import Batch as Handed
from rollout_hookspecs import Rollout, Run
from transformers import TrainerCallback

from benchmarks.batches import Writer
from benchmarks.measure import folder_bytes, goal, main, median, resident, seconds, show, size, table
from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.pipeline import Pipeline

SLACK = 5e6


def trained(folder: Path, kind: str, steps: int, *, on: bool) -> dict[str, Any]:
    from rig import GRPO, RLOO, dataset, make, tiny_model

    trainer = make(
        folder,
        model=tiny_model(folder, layers=2),
        cls=RLOO if kind == "RLOO" else GRPO,
        max_steps=steps,
        rows=dataset(64),
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=32,
        logging_steps=1,
        learning_rate=1e-3,
        gradient_checkpointing=True,  # as TRL does unless it is told otherwise
    )
    trainer.__class__ = type(trainer).__mro__[2]  # TRL's own class, without what the tests note down
    if on:
        trainer.add_callback(RolloutPluginCallback())
    pace = Pace()
    trainer.add_callback(pace)
    wall = time.perf_counter()
    trainer.train()
    wall = time.perf_counter() - wall
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    kept = len(open_run(folder / "out")) if on else 0
    return {"walls": pace.walls, "cpus": pace.cpus, "rest": wall - sum(pace.walls), "losses": losses, "kept": kept}


class Pace(TrainerCallback):
    """How long each step takes, from its begin to that of the next, logging and all; wall and CPU time."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.cpus: list[float] = []
        self._last: tuple[float, float] | None = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        now = (time.perf_counter(), time.process_time())
        if self._last is not None:
            self.walls.append(now[0] - self._last[0])
            self.cpus.append(now[1] - self._last[1])
        self._last = now


def alternate(folder: Path, kind: str, steps: int, rounds: int) -> list[list[Any]]:
    """Off and on in turn, so that whatever else the machine does falls on both."""
    trained(folder / f"{kind}-warm", kind, 3, on=True)
    off, on = [], []
    for number in range(rounds):
        for way, runs in ((False, off), (True, on)) if number % 2 else ((True, on), (False, off)):
            runs.append(trained(folder / f"{kind}-{number}-{way}", kind, steps, on=way))
    same = all(run["losses"] == off[0]["losses"] and run["losses"] for run in [*off, *on])
    assert all(run["kept"] == steps * 16 for run in on), "rollouts are missing"
    (wall, cpu), (wall_on, cpu_on) = _step(off), _step(on)
    ratio = goal("", wall / wall_on, 0.99, at_least=True)[1:]
    once = median(run["rest"] for run in on) - median(run["rest"] for run in off)
    verdict = "identical" if same else "DIFFERENT"
    return [[kind, f"{1 / wall:.1f}", *ratio, f"{cpu / cpu_on:.3f}", seconds(once), verdict]]


def _step(runs: list[dict[str, Any]]) -> tuple[float, float]:
    """Wall and CPU time of the median step."""
    return median(t for run in runs for t in run["walls"]), median(t for run in runs for t in run["cpus"])


def long(folder: Path, steps: int) -> list[list[Any]]:
    """Tiny generations, one after the other, as fast as they are taken. Memory counts from a tenth of them on."""
    writer, deepest, rows = Writer(3), 0, []
    texts = [writer.text(200) for _ in range(500)]
    pipeline = _pipeline(folder / "warm")  # loads what is loaded once, Parquet above all
    pipeline.submit(Handed(build=lambda: _tiny(texts, 1), count=4))
    pipeline.close()
    pipeline = _pipeline(folder / "long")
    for step in range(1, steps + 1):
        pipeline.submit(Handed(build=lambda step=step: _tiny(texts, step), step=step, count=4, bytes=4096))
        queued = int(pipeline.own_metrics()["queue_bytes"])
        deepest = max(deepest, queued)
        pipeline.pop_metrics("train")
        if queued > 40 * 4096:
            pipeline.drain(60)
        if step % (steps // 10) == 0:
            pipeline.drain(60)
            gc.collect()
            rows.append((step, resident(), int(pipeline.own_metrics()["queue_bytes"])))
    pipeline.close()
    files = [path for path in (folder / "long").rglob("*") if path.is_file()]
    kept = len(open_run(folder / "long"))
    grown = rows[-1][1] - rows[0][1]
    left = max(queued for _, _, queued in rows)
    on_disk = f"{len(files)}, {size(folder_bytes(folder / 'long'))}"
    return [
        ["rollouts kept", f"{kept} of {steps * 4}", _met(kept == steps * 4)],
        [f"memory from step {rows[0][0]} to {rows[-1][0]}", size(grown), _met(grown <= SLACK)],
        ["files, and their size", on_disk, _met(len(files) <= 10)],
        ["bytes left in the queue at a tenth, at most", left, _met(not left)],
        ["generations in the queue, at most", deepest // 4096, ""],
    ]


def _met(met: bool) -> str:
    return "met" if met else "MISSED"


def _pipeline(folder: Path) -> Pipeline:
    pipeline = Pipeline(Plugins())
    pipeline.start(Run(id=folder.name, dir=str(folder), reward_names=("r",)))
    return pipeline


def _tiny(texts: list[str], step: int) -> list[Rollout]:
    base = Rollout(id="", group_size=2, rewards={"r": step % 7 / 7}, reward=step % 7 / 7, finish="stop")
    prompt = ({"role": "user", "content": texts[step % 500]},)
    answer = {"role": "assistant", "content": texts[step * 7 % 500]}
    return [replace(base, index=i, group=i // 2, prompt=prompt, completion=({**answer, "n": i},)) for i in range(4)]


def run(steps: int, rounds: int, length: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="train-"))
    rows = long(folder, length)  # first, while memory holds nothing else
    show(table(f"{length} steps of 4 tiny rollouts", ("", "measured", ""), rows))
    rows = alternate(folder, "GRPO", steps, rounds) + alternate(folder, "RLOO", steps, rounds)
    head = ("", "steps/s without", "steps/s ratio", "wanted", "", "CPU ratio", "once a run", "losses")
    show(table(f"{steps} steps of 16 rollouts, {rounds} times with and without", head, rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", type=int, default=10_000)
    given = parser.parse_args()
    main(lambda: run(given.steps, given.rounds, given.long))
