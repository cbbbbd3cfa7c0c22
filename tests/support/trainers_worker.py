"""Run under torchrun by test_trainers_odd: trainers of three kinds on several ranks."""

import json
import os
import sys
from pathlib import Path

from trainers import KINDS, make

from rollout_plugins import RolloutPluginCallback


def main(out: Path, names: list[str]) -> None:
    for name in names:
        rows = KINDS[name].rows
        callbacks = [RolloutPluginCallback(tokens=True)]
        trainer = make(out / name, name, callbacks, rows=rows(32), eval_rows=rows(8), max_steps=1, eval_strategy="no")
        trainer.train()
        (out / name / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(trainer.truth))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
