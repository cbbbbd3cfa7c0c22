"""Run under torchrun by test_read_training: one short training in two processes."""

import sys
from pathlib import Path

from rig import call, make
from tools import multiply

from rollout_plugins import RolloutPluginCallback

if __name__ == "__main__":
    trainer = make(
        Path(sys.argv[1]),
        [call("multiply", {"a": 2, "b": 3}), "no idea", "It is 6."],
        tools=[multiply],
        max_steps=2,
        per_device_train_batch_size=2,
    )
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
