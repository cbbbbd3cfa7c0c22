"""Run by test_vllm: trainings that generate with vLLM, in this process and through a server, on a stand-in engine."""

import json
import sys
from pathlib import Path

import torch
from rig import GRPO, RLOO, make, tiny_model
from served import Asked, serve, stop
from vllm import Engine

from rollout_plugins import RolloutPluginCallback

try:
    from trl.generation.vllm_client import VLLMClient
except ImportError:
    from trl.extras.vllm_client import VLLMClient

MODES = {
    "server": {"vllm_mode": "server"},
    "colocate": {"vllm_mode": "colocate"},
    "sleeping": {"vllm_mode": "colocate", "vllm_enable_sleep_mode": True},
}


class Server:
    """What TRL's client asks of a server, of one that TRL starts (with a slash at the end) or of vLLM's own."""

    def __init__(self, model):
        self.engine = Engine(model)
        self._http = serve(_Asked, stand_in=self)
        self.url = self._http.url

    def answered(self, path, request):
        path = path.partition("?")[0].strip("/")
        if path in {"v1/completions", "generate", "chat"}:
            return self._completions(path, request)
        if path in {"update_weights", "update_named_param"}:
            self.engine.load_weights([path])
        if path == "reset_prefix_cache":
            self.engine.reset_prefix_cache()
        config = {"model_config": {"logprobs_mode": "processed_logprobs"}, "weight_transfer_config": {}}
        return {"data": [{"id": "tiny"}], "world_size": 1, "success": True, "vllm_config": config}

    def _completions(self, path, request):
        prompts = [self._ids(one) for one in request.get("prompts") or request.get("messages") or request["prompt"]]
        made = [self.engine.answer(request["max_tokens"]) for _ in prompts for _ in range(request["n"])]
        if path == "v1/completions":
            asked = [ids for ids in prompts for _ in range(request["n"])]
            return {"choices": [_choice(ids, *one) for ids, one in zip(asked, made, strict=True)]}
        return {
            "prompt_ids": prompts,
            "completion_ids": [ids for ids, _ in made],
            "logprobs": [[[p] for p in logprobs] for _, logprobs in made],
            "logprob_token_ids": [[[token] for token in ids] for ids, _ in made],
        }

    def _ids(self, prompt):
        if isinstance(prompt, str):
            return self.engine.tokenizer(prompt)["input_ids"]
        if isinstance(prompt[0], int):
            return prompt
        text = self.engine.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        return self.engine.tokenizer(text)["input_ids"]

    def close(self):
        stop(self._http)


def _choice(asked, ids, logprobs):
    tokens = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": logprobs}
    return {"prompt_token_ids": asked, "token_ids": ids, "logprobs": tokens | {"top_logprobs": [{}] * len(ids)}}


class _Asked(Asked):
    def do_GET(self):
        self._answered({})

    def do_POST(self):
        self._answered(json.loads(self.body() or b"{}"))

    def _answered(self, request):
        self.answer(self.server.stand_in.answered(self.path, request))


def without_gpu():
    """The weights themselves go through NCCL, which needs one; that they go is told by HTTP alone."""
    VLLMClient.init_communicator = lambda self, device=0: None
    VLLMClient.close_communicator = lambda self: None
    torch.cuda.current_device = lambda: 0

    def sent(self, *args):
        for one in args[-1] if not hasattr(args[-1], "shape") else args:
            del one
        self.session.post(f"{self.base_url}/update_weights", json={})

    VLLMClient.update_named_params = VLLMClient.update_named_param = sent


def trained(folder, kind, mode, callbacks):
    server = Server(tiny_model(folder))
    trainer = make(
        folder, cls={"GRPO": GRPO, "RLOO": RLOO}[kind], callbacks=callbacks, use_vllm=True, max_steps=3,
        vllm_server_base_url=server.url, max_completion_length=32, learning_rate=1e-3, **MODES[mode],
    )  # fmt: skip
    trainer.train()
    server.close()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = [float(weight.double().sum()) for weight in trainer.model.state_dict().values()]
    return {"truth": trainer.truth, "losses": losses, "weights": weights}


def main(out):
    without_gpu()
    for kind in ("GRPO", "RLOO"):
        for mode in MODES:
            name = f"{kind} {mode}"
            found = {
                "without": trained(out / name / "without", kind, mode, []),
                "with": trained(out / name / "with", kind, mode, [RolloutPluginCallback(tokens=True)]),
            }
            (out / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
