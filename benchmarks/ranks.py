"""One, two and four processes that train together: what recording costs them, and whether every rollout is there.

python -m benchmarks.ranks [--steps 40]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import folder_bytes, main, show, size, table
from rollout_plugins import RolloutPluginCallback, open_run

ROOT = Path(__file__).parents[1]
EACH = 8


def worker(folder: Path, steps: int) -> None:
    """Run by torchrun: trainings with and without, twice each, in one process group."""
    from rig import dataset, make
    from trl import GRPOTrainer

    for name in ("warm", "off 1", "on 1", "on 2", "off 2"):
        trainer = make(
            folder / name,
            cls=GRPOTrainer,
            max_steps=3 if name == "warm" else steps,
            rows=dataset(64),
            per_device_train_batch_size=EACH,
            num_generations=4,
            max_completion_length=24,
            learning_rate=1e-3,
        )
        if not name.startswith("off"):
            trainer.add_callback(RolloutPluginCallback())
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        facts = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        facts["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (folder / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(facts))


def launch(folder: Path, world: int, steps: int) -> list[Any]:
    from rig import tiny_model

    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RIG_MODEL": tiny_model(folder)}
    env["PYTHONPATH"] = f"{ROOT}:{ROOT}/hookspecs"
    asked = [*command, "-m", "benchmarks.ranks", "--worker", str(folder), "--steps", str(steps)]
    done = subprocess.run(asked, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{world} ranks: {done.stderr[-2000:]}")
    names = ("on 1", "on 2", "off 1", "off 2")
    facts = {name: [_facts(folder, name, rank) for rank in range(world)] for name in names}
    best = {way: min(facts[f"{way} {n}"][0]["wall"] for n in (1, 2)) for way in ("on", "off")}
    cpu = {way: sum(rank["cpu"] for n in (1, 2) for rank in facts[f"{way} {n}"]) for way in ("on", "off")}
    same = len({json.dumps(rank["losses"]) for ranks in facts.values() for rank in ranks[:1]}) == 1
    run = open_run(folder / "on 1" / "out")
    rollouts = list(run.rollouts())
    whole = len(rollouts) == len({r.id for r in rollouts}) == steps * EACH * world and not run.health.damaged
    places = all(sorted(r.index for r in run.rollouts(step=s)) == list(range(EACH * world)) for s in (1, steps))
    files = sum(1 for path in Path(run.dir).rglob("*") if path.is_file())
    return [
        world,
        f"{steps / best['off']:.1f}",
        f"{best['off'] / best['on']:.3f}",
        f"{cpu['off'] / cpu['on']:.3f}",
        "identical" if same else "DIFFERENT",
        f"{len(rollouts)} of {steps * EACH * world}, {'each once, in its place' if whole and places else 'NOT WHOLE'}",
        f"{files}, {size(folder_bytes(Path(run.dir)))}",
    ]


def _facts(folder: Path, name: str, rank: int) -> dict[str, Any]:
    return dict(json.loads((folder / f"{name}-{rank}.json").read_text()))


def run(steps: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    rows = [launch(folder / str(world), world, steps) for world in (1, 2, 4)]
    head = ("ranks", "steps/s without", "steps/s ratio", "CPU ratio", "losses", "rollouts", "files")
    show(table(f"{steps} steps of {EACH} rollouts a rank, gloo on the CPU", head, rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.steps)
    else:
        main(lambda: run(given.steps))
