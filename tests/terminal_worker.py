"""Run by test_sinks_grpo on a terminal that nobody reads: a training with a progress bar and a console sink."""

import sys
from pathlib import Path

from rig import make

from rollout_plugins import RolloutPluginCallback
from rollout_plugins.sinks.console import ConsoleSink

if __name__ == "__main__":
    out = Path(sys.argv[1])
    callback = RolloutPluginCallback([ConsoleSink(max_lines=500)])
    long = "a line of an answer\n" * 60
    trainer = make(
        out,
        [long],
        max_steps=12,
        max_completion_length=2000,
        disable_tqdm=False,
        logging_steps=99,
        callbacks=[callback],
    )
    trainer.train()
    (out / "trained").touch()
