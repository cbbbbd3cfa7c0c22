"""Run under torchrun by test_sinks_grpo: one training whose sinks see all ranks, or each its own."""

import sys
from pathlib import Path

from rig import make

from rollout_plugins import RolloutPluginCallback
from rollout_plugins.sinks.jsonl import JsonlSink
from rollout_plugins.sinks.trackio import TrackioSink

if __name__ == "__main__":
    out, project = Path(sys.argv[1]), sys.argv[2]
    plugins = [TrackioSink(project=project, name="each", scope="rank"), JsonlSink(out / "lines")]
    callback = RolloutPluginCallback(plugins)
    make(out, max_steps=2, per_device_train_batch_size=2, callbacks=[callback]).train()
