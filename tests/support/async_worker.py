"""Run by test_async_processes: under torchrun with and without the callback, or alone and killed in the fifth step."""

import json
import os
import signal
import sys
from pathlib import Path

from async_rig import make_async, sample, tokenizer
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, hookimpl


class Sink:
    @hookimpl
    def export_traces(self, traces, step):
        SEEN.extend((trace.rollout_id, step.gathered) for trace in traces)


class Killed(TrainerCallback):
    """Dies without a word when four steps are on disk."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            assert self.callback.flush(600)
            os.kill(os.getpid(), signal.SIGKILL)


SEEN: list = []


def made(folder):
    tok = tokenizer(folder)
    return make_async(
        folder, [sample(tok, n, group=n // 4) for n in range(60)], max_steps=6, max_staleness=99, learning_rate=1e-2
    )


def ranks(out):
    rank, facts = int(os.environ["RANK"]), {}
    for name in ("plain", "watched"):
        trainer = made(out / name)
        if name == "watched":
            trainer.add_callback(RolloutPluginCallback([Sink()]))
        trainer.train()
        facts[name] = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    (out / f"rank-{rank}.json").write_text(json.dumps({**facts, "truth": trainer.truth, "seen": SEEN}))


def kill(out):
    killed = Killed()
    trainer = made(out)
    trainer.add_callback(killed)
    killed.callback = RolloutPluginCallback()
    trainer.add_callback(killed.callback)
    trainer.train()


if __name__ == "__main__":
    (ranks if "RANK" in os.environ else kill)(Path(sys.argv[1]))
