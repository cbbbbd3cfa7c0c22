"""Stands for vLLM's package where no engine can run: what trainers ask of it, and answers that say which weights wrote them.

Put this folder's parent on the path of a process of its own, before TRL is imported there. Modules below it exist
whatever their names, with whatever classes are asked of them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import itertools
import sys
from types import SimpleNamespace

__version__ = "0.22.0"


class Engine:
    """Generates `answer N of weights W`. Its weights are as old as the last cache reset after some were sent."""

    def __init__(self, model, **_):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.numbers, self.weights, self._has_new = itertools.count(), 0, False

    def load_weights(self, pairs):
        self._has_new |= any(True for _ in pairs)

    def reset_prefix_cache(self):
        self.weights += self._has_new
        self._has_new = False

    def answer(self, most):
        number = next(self.numbers)
        text = f"answer {number} of weights {self.weights}"
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id][:most]
        return ids, [-0.5 - number / 64] * len(ids)


class SamplingParams:
    def __init__(self, n=1, max_tokens=16, **_):
        self.n, self.max_tokens = n, max_tokens


class RequestOutput:
    def __init__(self, prompt_token_ids, answers):
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [
            SimpleNamespace(
                token_ids=ids,
                logprobs=[{t: SimpleNamespace(logprob=p, rank=1)} for t, p in zip(ids, logprobs, strict=True)],
            )
            for ids, logprobs in answers
        ]


class LLM(Engine):
    """In the trainer's process. What sleeps can neither take weights nor generate."""

    def __init__(self, model, **options):
        super().__init__(model)
        self.asleep = set()
        runner = SimpleNamespace(model=self)
        worker = SimpleNamespace(model_runner=runner)
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def sleep(self, level=1):
        self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags=None):
        self.asleep -= set(tags or self.asleep)

    def collective_rpc(self, *args, **kwargs):
        pass

    def load_weights(self, pairs):
        assert "weights" not in self.asleep
        super().load_weights(pairs)

    def generate(self, prompts, sampling_params=None, **_):
        assert not self.asleep
        ids = [prompt["prompt_token_ids"] if isinstance(prompt, dict) else self._ids(prompt) for prompt in prompts]
        return [
            RequestOutput(one, [self.answer(sampling_params.max_tokens) for _ in range(sampling_params.n)])
            for one in ids
        ]

    def _ids(self, prompt):
        return list(prompt) if isinstance(prompt, list) else self.tokenizer(prompt)["input_ids"]

    def chat(self, messages, sampling_params=None, **_):
        texts = [
            self.tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False) for one in messages
        ]
        return self.generate(texts, sampling_params)


class _Anything(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("vllm."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = lambda name: type(name, (), {})


sys.meta_path.append(_Anything())
