"""Real asynchronous TRL trainers on the tiny model, on CPU: no CUDA kernels, no weight server, samples as scripted.

The worker here implements TRL's public protocol; `vllm_stand_in` is for trainers with their own worker process.
"""

import queue
import sys
import time
from importlib.metadata import version

import numpy as np
import pytest
import torch
from rig import dataset, tiny_model

if tuple(map(int, version("trl").split(".")[:2])) < (1, 16):
    pytest.skip("the asynchronous trainers of older TRL are others", allow_module_level=True)

from transformers import AutoTokenizer
from trl.experimental import async_distillation, async_grpo
from trl.experimental.async_distillation import async_distillation_trainer
from trl.experimental.async_distillation import async_rollout_worker as distillation_worker
from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, packing

packing._flash_attn = lambda: sys.modules[__name__]  # the kernels are CUDA's
for module in (async_grpo_trainer, async_distillation_trainer):
    module.get_peak_flops_per_device = lambda *args: None  # asks CUDA
for module in (async_rollout_worker, distillation_worker):
    module.is_vllm_available = lambda *args, **kwargs: True  # the server is what needs it


def flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale=None, causal=True, window_size=(-1, -1)):
    """What the kernel computes: causal attention within each segment, aligned to the end of its keys."""
    out = []
    pairs = zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), cu_k[:-1].tolist(), cu_k[1:].tolist(), strict=True)
    for q0, q1, k0, k1 in pairs:
        repeat = q.shape[1] // k.shape[1]
        keys, values = (x[k0:k1].repeat_interleave(repeat, 1) for x in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q[q0:q1], keys) * (softmax_scale or q.shape[-1] ** -0.5)
        n, m = q1 - q0, k1 - k0
        scores = scores.masked_fill(torch.arange(m)[None] > torch.arange(n)[:, None] + (m - n), float("-inf"))
        out.append(torch.einsum("hnm,mhd->nhd", scores.softmax(-1), values))
    return torch.cat(out)


class NoTransfer:
    """TRL's protocol for sending weights, with nobody to send them to."""

    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def send_weights(self, iterator):
        for _ in iterator:
            pass

    def resume(self):
        pass

    def destroy(self):
        pass


class Impatient(queue.Queue):
    """An empty queue says so at once."""

    def get(self, block=True, timeout=None):
        return super().get(block=False)


class Scripted:
    """TRL's protocol for workers: these samples, in this order, and then it dies."""

    def __init__(self, samples):
        self.rollout_buffer = Impatient()
        self.metrics_queue = queue.Queue()
        self.samples = samples
        self.stopped = 0
        self.death = RuntimeError("the worker died")

    def start(self):
        for sample in self.samples:
            self.rollout_buffer.put(sample)

    def stop(self):
        self.stopped += 1

    def update_model_version(self, model_version):
        pass

    def check_health(self, stale_after_s):
        raise self.death


class Truth:
    """Which samples really went through forward and backward, and in which step."""

    number = None  # where a batch has what tells samples apart

    def training_step(self, model, inputs, *args, **kwargs):
        out = super().training_step(model, inputs, *args, **kwargs)
        found = {number_of(value) for value in inputs[self.number].flatten().tolist() if -1e9 < value < 0}
        self.truth.update(dict.fromkeys(found, self.state.global_step + 1))
        return out


class AsyncGRPO(Truth, async_grpo.AsyncGRPOTrainer):
    number = "old_log_probs"


class AsyncDistillation(Truth, async_distillation.AsyncDistillationTrainer):
    number = "teacher_topk_logprobs"


def logprob_of(number):
    """A log-probability that only this sample has, exact in 32 bits."""
    return -(number + 1) / 64


def number_of(logprob):
    return round(-logprob * 64) - 1


def ids_of(tokenizer, messages, text):
    """Prompt ids and completion ids."""
    prompt = tokenizer.apply_chat_template(messages, return_dict=False, add_generation_prompt=True)
    return list(prompt), [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def sample(tokenizer, number=0, text=None, *, group=0, version=1, advantage=0.5, **metrics):
    """A sample of AsyncGRPO, as its worker makes them."""
    text = f"hello {number}" if text is None else text
    messages = [{"role": "user", "content": f"question {group}"}]
    before, after = ids_of(tokenizer, messages, text)
    return async_rollout_worker.RolloutSample(
        prompt=messages,
        completion=[{"role": "assistant", "content": text}],
        input_ids=np.array(before + after),
        completion_mask=np.array([0] * len(before) + [1] * len(after)),
        old_log_probs=np.array([0.0] * len(before) + [logprob_of(number)] * len(after), np.float32),
        advantage=advantage,
        model_version=version,
        group_id=group,
        metrics={"reward": 1.0, "reward_std": 0.5, "rewards/by_len": 1.0} | metrics,
        enqueued_at=time.time(),
    )


def distilled(tokenizer, number=0, text=None, *, group=None, version=1):
    """A sample of AsyncDistillation, as its worker makes them: one for each prompt."""
    text = f"hello {number}" if text is None else text
    messages = [{"role": "user", "content": f"question {number}"}]
    before, after = ids_of(tokenizer, messages, text)
    ids = np.array(before + after)
    return distillation_worker.RolloutSample(
        prompt=messages,
        completion=[{"role": "assistant", "content": text + tokenizer.eos_token}],
        input_ids=ids,
        completion_mask=np.array([0] * len(before) + [1] * len(after)),
        teacher_topk_ids=np.stack([ids, np.full(len(ids), -1)], 1),
        teacher_topk_logprobs=np.stack([np.full(len(ids), logprob_of(number)), np.full(len(ids), -np.inf)], 1).astype(
            np.float32
        ),
        model_version=version,
        metrics={},
        teacher_id="t",
        prompt_id=number,
        enqueued_at=time.time(),
    )


def tokenizer(folder):
    return AutoTokenizer.from_pretrained(tiny_model(folder))


def make_async(
    folder, samples=None, *, kind="grpo", rewards=None, tools=None, callbacks=None, environment=None, **config
):
    """A trainer of two steps of four samples. Without samples it has the worker TRL gives it."""
    options = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "max_completion_length": 100,
        "max_steps": 2, "report_to": [], "use_cpu": True, "bf16": False, "logging_steps": 1, "save_strategy": "no",
        "disable_tqdm": True, "token_budget": 0, "queue_maxsize": 8, "max_inflight_tasks": 8, "seed": 7,
        "gradient_checkpointing": False,
    }  # fmt: skip
    more = {}
    if kind == "grpo":
        config_class, trainer_class = async_grpo.AsyncGRPOConfig, AsyncGRPO
        options |= {"num_generations": 4, "max_tool_calling_iterations": 1, "dtype": "float32"}
        more = {"reward_funcs": rewards or [], "tools": tools, "environment_factory": environment}
    else:
        config_class, trainer_class = async_distillation.AsyncDistillationConfig, AsyncDistillation
        options |= {
            "teacher_top_k": 1,
            "teacher_server_urls": {"t": "http://127.0.0.1:9"},
            "model_init_kwargs": {"attn_implementation": "sdpa", "dtype": "float32"},
        }
    trainer = trainer_class(
        tiny_model(folder),
        args=config_class(**options | config),
        train_dataset=dataset(),
        rollout_worker=None if samples is None else Scripted(samples),
        weight_transfer=NoTransfer(),
        callbacks=callbacks,
        **more,
    )
    trainer.truth = {}
    return trainer
