"""Run under torchrun by test_ranks: several trainings in one process group, each with the callback on other ranks."""

import json
import os
import sys
from pathlib import Path

from rig import make

from rollout_plugins import RolloutPluginCallback, hookimpl


class FailsOnRankOne:
    """A plugin with a fault on one rank only."""

    @hookimpl
    def on_rollout(self, rollout, step):
        if step.rank == 1:
            raise RuntimeError("only here")

    @hookimpl
    def export_traces(self, traces, step):
        SEEN.extend(
            (trace.rollout_id, trace.metadata["rank"], step.gathered, trace.metadata["reward/percent"])
            for trace in traces
        )


def percent(completions, **kwargs):
    return [52.07 + int(os.environ["RANK"]) + i / 10 for i in range(len(completions))]


SEEN: list = []
SCENARIOS = {
    "all": lambda rank: True,
    "only first": lambda rank: rank == 0,
    "not first": lambda rank: rank != 0,
    "group across ranks": lambda rank: True,
}


def main(out: Path) -> None:
    rank = int(os.environ["RANK"])
    for name, present in SCENARIOS.items():
        SEEN.clear()
        batch = {"per_device_train_batch_size": 1 if name == "group across ranks" else 2}
        trainer = make(out / name, max_steps=3, rewards=percent, **batch)
        if present(rank):
            trainer.add_callback(RolloutPluginCallback([FailsOnRankOne()]))
        trainer.train()
        facts = {
            "truth": [[row["prompt"], row["completion"]] for row in trainer.truth],
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "seen": SEEN,
        }
        (out / name).mkdir(exist_ok=True)
        (out / name / f"rank-{rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
