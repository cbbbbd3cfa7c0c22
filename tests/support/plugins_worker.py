"""Run under torchrun by test_plugins_grpo: a run of images on several ranks, with all concern plugins."""

import json
import os
import sys
from pathlib import Path

from vlm import make_vlm, picture, rows

from rollout_plugins import RolloutPluginCallback, hookimpl

SEEN = []


class Sink:
    @hookimpl
    def export_traces(self, traces, step):
        SEEN.extend([step.step, trace.rollout_id] for trace in traces)


def main(out: Path) -> None:
    dataset = rows(image=[picture(i) for i in range(4)])
    trainer = make_vlm(out, dataset, per_device_train_batch_size=2, max_steps=4)
    config = {"cap": {"max_per_step": 3}}
    trainer.add_callback(RolloutPluginCallback(["cap", "dedup", "redact", Sink()], config=config))
    trainer.train()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(SEEN))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
