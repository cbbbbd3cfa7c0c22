"""Run by test_killed_training: real trainings, each in a fork of its own that is killed at a random moment.

Each tells, generation by generation, what it handed over. Forking saves importing torch for each of them.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from rig import half, make

from rollout_plugins import RolloutPluginCallback


def train(folder: Path) -> None:
    trainer = make(folder, max_steps=100_000, rewards=half, logging_steps=100_000)
    callback = RolloutPluginCallback(trainer=trainer)
    trainer.add_callback(callback)
    original = trainer._generate_and_score_completions

    def told(inputs):
        out = original(inputs)
        callback.flush(600)
        with (folder / "truth.jsonl").open("a") as file:
            rows = [[row["prompt"], row["completion"], row["advantage"]] for row in trainer._fresh]
            file.write(json.dumps(rows) + "\n")
        return out

    trainer._generate_and_score_completions = told
    trainer.train()


def main(out: Path, times: int) -> None:
    dice = random.Random(3)
    for number in range(times):
        folder = out / str(number)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            train(folder)
            os._exit(1)
        while not (folder / "truth.jsonl").exists() or b"\n" not in (folder / "truth.jsonl").read_bytes():
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.01)
        time.sleep(dice.random() / 2)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
