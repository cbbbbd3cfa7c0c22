"""Run by patched_axolotl, and under torchrun, where rank 0 generates for all ranks: through a stand-in for vLLM's server."""

import json
import os
import sys
from itertools import count
from pathlib import Path

import torch
from episodes import END, between, played
from patched_axolotl import SpiedAsync, made, number, talkative
from rig import tiny_model
from vllm_worker import Server, without_gpu

from rollout_plugins import RolloutPluginCallback

MODES = {
    "async": {},
    "producer": {"use_data_producer": True},
    "streaming": {"streaming_partial_batch": True},
}
PIECES = [("I look." + END, 1), (between("It is dark."), 0), ("answer number 3" + END, 1)]
EPISODES = count()


def numbered(episodes):
    return [next(EPISODES) for _ in range(episodes)]


class Mended(SpiedAsync):
    """What is generated for all ranks has its number of tokens as a number, which TRL 0.29 cannot shuffle."""

    def _generate_rank0_only(self, prompts):
        *before, total, logprobs, fields = super()._generate_rank0_only(prompts)
        return *before, torch.tensor(total), logprobs, fields


def through(server):
    return {"async_prefetch": True, "use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url}


def play(out):
    """One process: where rank 0 generates for others too, axolotl calls no `rollout_func`."""
    without_gpu()
    server = Server(tiny_model(out))
    options = through(server) | {"max_completion_length": 200}
    episode = played([PIECES], episode=numbered)

    def func(prompts, trainer):
        out = episode(prompts, trainer)
        return out | {"logprobs": [[[value] for value in row] for row in out["logprobs"]]}

    callbacks = [RolloutPluginCallback(tokens=True)]
    trainer = made(out, SpiedAsync, options, None, [number], callbacks=callbacks, rollout_func=func)
    trainer.train()
    server.close()


def main(out):
    without_gpu()
    rank = os.environ["RANK"]
    for mode, config in MODES.items():
        server = Server(tiny_model(out))
        options = through(server) | config
        callbacks = [RolloutPluginCallback(tokens=True)]
        trainer = made(out / mode, Mended, options, None, [talkative], callbacks=callbacks)
        trainer.train()
        seen = {"made": vars(trainer).get("made", []), "given_out": trainer.given_out}
        (out / mode / f"rank-{rank}.json").write_text(json.dumps(seen))
        server.close()


if __name__ == "__main__":
    (main if "RANK" in os.environ else play)(Path(sys.argv[1]))
