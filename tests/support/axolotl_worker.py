"""Run by patched_axolotl, and under torchrun, where rank 0 generates for all ranks: through a stand-in for vLLM's server."""

import json
import os
import sys
from collections import defaultdict
from itertools import count
from pathlib import Path

import torch
from axolotl.core.trainers.grpo.trainer import AxolotlGRPOSequenceParallelTrainer
from axolotl.monkeypatch.ring_attn import set_ring_attn_group
from episodes import END, between, played
from patched_axolotl import SpiedAsync, made, number, talkative
from rig import tiny_model
from torch import distributed as dist
from vllm_worker import Server, without_gpu

from rollout_plugins import RolloutPluginCallback

SHARED = {"context_parallel_size": 2, "loss_type": "grpo", "max_completion_length": 8, "max_steps": 2}
SHARED["vllm_importance_sampling_correction"] = False  # of what this trainer does not hand on
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


class Lacking(AxolotlGRPOSequenceParallelTrainer):
    """With what this trainer asks for and TRL 0.29 does not have any more."""

    max_prompt_length = guided_decoding_regex = None
    repetition_penalty, _last_loaded_step = 1.0, -1

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._textual_logs = {"prompt": [], "completion": [], "rewards": defaultdict(list)}
        self.vllm_client, self.trained_on = self, []

    def _move_model_to_vllm(self):
        pass

    def generate(self, prompts, n, **kwargs):
        """In place of vLLM's server: answers of different lengths, and with the prompt's last token."""
        asked = [self.processing_class(prompt)["input_ids"] for prompt in prompts]
        return [[*ids[-3:], 30 + i, *[9] * i, self.processing_class.eos_token_id] for ids in asked for i in range(n)]

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        rows = zip(out["completion_ids"], out["completion_mask"].bool(), out["advantages"].tolist(), strict=True)
        self.trained_on += [(ids[mask].tolist(), advantage) for ids, mask, advantage in rows]
        return out


def share_sequences(out, rank):
    """Two ranks to each sequence, as axolotl's trainer has them; how attention is shared out makes no difference."""
    set_ring_attn_group(dist.group.WORLD)
    for mode in ("shared by vLLM", "shared"):
        trainer = made(out / mode, Lacking, SHARED, None, [talkative], callbacks=[RolloutPluginCallback(tokens=True)])
        trainer.use_vllm = trainer.args.use_vllm = mode == "shared by vLLM"
        trainer.train()
        (out / mode / f"rank-{rank}.json").write_text(json.dumps(trainer.trained_on))


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
    share_sequences(out, rank)


if __name__ == "__main__":
    (main if "RANK" in os.environ else play)(Path(sys.argv[1]))
