"""Run under torchrun by patched_axolotl: rank 0 generates for all ranks, through a stand-in for vLLM's server."""

import json
import os
import sys
from pathlib import Path

import torch
from patched_axolotl import SpiedAsync, made, talkative
from rig import tiny_model
from vllm_worker import Server, without_gpu

from rollout_plugins import RolloutPluginCallback

MODES = {
    "async": {},
    "producer": {"use_data_producer": True},
    "streaming": {"streaming_partial_batch": True},
}


class Mended(SpiedAsync):
    """What is generated for all ranks has its number of tokens as a number, which TRL 0.29 cannot shuffle."""

    def _generate_rank0_only(self, prompts):
        *before, total, logprobs, fields = super()._generate_rank0_only(prompts)
        return *before, torch.tensor(total), logprobs, fields


def main(out):
    without_gpu()
    rank = os.environ["RANK"]
    for mode, config in MODES.items():
        server = Server(tiny_model(out))
        options = {"async_prefetch": True, "use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url}
        callbacks = [RolloutPluginCallback(tokens=True)]
        trainer = made(out / mode, Mended, options | config, None, [talkative], callbacks=callbacks)
        trainer.train()
        seen = {"made": vars(trainer).get("made", []), "given_out": trainer.given_out}
        (out / mode / f"rank-{rank}.json").write_text(json.dumps(seen))
        server.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
