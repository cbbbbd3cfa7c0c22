"""Every other trainer of TRL that makes rollouts, tiny and real, with the truth kept by a spy on the models."""

from __future__ import annotations

import functools
import inspect
import sys
import tempfile
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from packaging.version import Version
from rig import dataset, half, scripted, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollout_plugins.engine.discover import TRAINERS, Plugins
from rollout_plugins.hosts import HOSTS

TRL = Version(version("trl"))


@functools.cache
def hosts():
    """Those that a callback would ask, in that order."""
    plugins = Plugins(autoload=False)
    plugins.add(TRAINERS)
    return [host for some in (*plugins.manager.hook.register_hosts(), HOSTS) for host in some]


def picky(completions, **kwargs):
    return [None if i == 0 else 0.5 for i in range(len(completions))]


def conversations(rows=8):
    """What supervised trainers take: a question, and the dataset's own answer."""
    return Dataset.from_dict(
        {
            "messages": [
                [{"role": "user", "content": f"hello {i}"}, {"role": "assistant", "content": f"the answer is {i}"}]
                for i in range(rows)
            ],
            "number": list(range(rows)),
        }
    )


def helped(rows=8):
    return dataset(rows, privileged_context=[f"hint {i}" for i in range(rows)])


@dataclass
class Kind:
    """How one trainer is made, and what is special about it."""

    module: str
    trainer: str
    config: dict = field(default_factory=dict)
    arguments: dict = field(default_factory=dict)
    rows: object = dataset
    names: tuple = ()
    evaluates: bool = True
    before: str = ""

    def __post_init__(self):
        if self._missing(self.module) and not self._missing("trl"):  # it was no experiment then
            self.module = "trl"

    def _missing(self, module):
        try:
            getattr(import_module(module), self.trainer)
        except (ImportError, AttributeError, NameError) as error:
            return str(error)
        return ""

    def skip(self):
        """Why this TRL cannot run it; None when it can."""
        missing = self._missing(self.module)
        if missing:
            return f"{self.trainer} cannot be imported from this TRL: {missing}"
        takes = inspect.signature(getattr(import_module(self.module), self.trainer).__init__).parameters
        foreign = [name for name in self.arguments if name not in takes]
        if foreign:
            return f"{self.trainer} of this TRL takes no {' and no '.join(foreign)}"
        if self.before and Version(self.before) <= TRL:
            return f"{self.trainer} is another trainer since TRL {self.before}"
        known = [Version(s.since) for host in hosts() for s in host.supports if s.trainer == self.trainer]
        if not known:
            return f"no plugin that is installed knows {self.trainer}"
        return f"{self.trainer} is recorded since TRL {min(known)}" if min(known) > TRL else None


_SCORED = {"reward_funcs": [half, picky]}
_SHORT = {"max_completion_length": 8}
_CHAT = {"max_length": 64, "lmbda": 1.0}
KINDS = {
    "grpo": Kind("trl", "GRPOTrainer", _SHORT | {"num_generations": 2}, _SCORED),
    "rloo": Kind("trl", "RLOOTrainer", _SHORT | {"num_generations": 2}, _SCORED),
    "gmpo": Kind("trl.experimental.gmpo", "GMPOTrainer", _SHORT | {"num_generations": 2}, _SCORED),
    "distillation": Kind("trl", "DistillationTrainer", _SHORT, {"teacher_model": "tiny"}),
    "distillation, with a buffer": Kind(
        "trl.experimental.distillation", "DistillationTrainer", _CHAT | _SHORT | {"num_generations": 2},
        {"teacher_model": "tiny"}, conversations, evaluates=False, before="1.10",
    ),
    "ssd": Kind("trl.experimental.ssd", "SSDTrainer", _SHORT),
    "server distillation": Kind(
        "trl.experimental.server_distillation",
        "ServerDistillationTrainer",
        _SHORT | {"teacher_model_server_url": "http://teacher"},
    ),
    "online dpo": Kind(
        "trl.experimental.online_dpo", "OnlineDPOTrainer", {"max_new_tokens": 8, "missing_eos_penalty": 1.0}, _SCORED,
        evaluates=False,
    ),
    "a2po": Kind("trl.experimental.a2po", "A2POTrainer", _SHORT | {"num_value_samples": 2, "filter_all_incorrect": False}, {"reward_funcs": [half]}),
    "sdpo": Kind("trl.experimental.sdpo", "SDPOTrainer", _SHORT | {"num_generations": 2}, _SCORED, helped),
    "sdft": Kind(
        "trl.experimental.sdft", "SDFTTrainer", _SHORT | {"num_generations": 2}, {}, helped, evaluates=Version("1.6") <= TRL,
    ),
    "sdft, teacher's prompts": Kind(
        "trl.experimental.sdft", "SDFTTrainer", _SHORT | {"num_generations": 2, "generate_from_teacher": True}, {},
        helped, evaluates=Version("1.6") <= TRL,
    ),
    "gkd": Kind(
        "trl.experimental.gkd", "GKDTrainer", _CHAT | {"max_new_tokens": 8}, {"teacher_model": "tiny"}, conversations,
        evaluates=False,
    ),
    "gkd, teacher's answers": Kind(
        "trl.experimental.gkd", "GKDTrainer", _CHAT | {"max_new_tokens": 8, "lmbda": 0.0, "seq_kd": True},
        {"teacher_model": "tiny"}, conversations, evaluates=False,
    ),
    "gold": Kind(
        "trl.experimental.gold", "GOLDTrainer", _CHAT | _SHORT | {"num_generations": 2}, {"teacher_model": "tiny"},
        conversations, evaluates=False,
    ),
    "iwopd": Kind(
        "trl.experimental.iw_opd", "IWOPDTrainer", _CHAT | _SHORT | {"num_generations": 2}, {"teacher_model": "tiny"},
        conversations, evaluates=False,
    ),
}  # fmt: skip


RUNNABLE = {name: kind for name, kind in KINDS.items() if kind.skip() is None}
kinds = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.skip(reason=kind.skip())] if name not in RUNNABLE else [])
        for name, kind in KINDS.items()
    ],
)


def needs(name):
    return pytest.mark.skipif(name not in RUNNABLE, reason=str(KINDS[name].skip()))


def signature_of(name):
    return inspect.signature(getattr(import_module("trl"), name)).parameters


TAKES_TOOLS = "distillation" in RUNNABLE and "max_tool_calling_iterations" in signature_of("DistillationConfig")


def make(folder, name, callbacks=None, *, arguments=None, script=None, model=None, **config):
    """A trainer of this kind that takes two steps of two micro-batches, and its `truth`."""
    kind = KINDS[name]
    module = import_module(kind.module)
    path = model or tiny_model(folder)
    options = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2, "max_steps": 2, "report_to": [], "use_cpu": True, "bf16": False,
        "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "seed": 7, "learning_rate": 1e-3,
        "gradient_checkpointing": False,
    }  # fmt: skip
    if kind.evaluates:
        options |= {"eval_strategy": "steps", "eval_steps": 2}
    rows, eval_rows = config.pop("rows", None), config.pop("eval_rows", None)
    args = _config_of(module, kind, options | kind.config | config)
    arguments = {k: path if v == "tiny" else v for k, v in kind.arguments.items()} | (arguments or {})
    with _teacher_server(path):
        processor = arguments.pop("processing_class", None) or AutoTokenizer.from_pretrained(path)
        trainer = getattr(module, kind.trainer)(
            arguments.pop("model", path), args=args, train_dataset=rows or kind.rows(), processing_class=processor,
            eval_dataset=eval_rows or kind.rows(4), callbacks=callbacks, **arguments,
        )  # fmt: skip
    if script is not None:
        trainer.model.generate = _as_asked(scripted(trainer, script))
    trainer.truth = []
    for tag in ("model", "ref_model", "teacher_model"):
        if getattr(trainer, tag, None) is not None:
            _spy(trainer, trainer.accelerator.unwrap_model(getattr(trainer, tag)), tag)
    return trainer


def _config_of(module, kind, options):
    """Without what this TRL does not have yet: GOLD made one completion of each prompt."""
    config_class = getattr(module, kind.trainer.replace("Trainer", "Config"))
    known = {one.name for one in fields(config_class)}
    return config_class(**{name: value for name, value in options.items() if name in known | {"max_steps"}})


def _as_asked(generate):
    """The sequences alone, or in the kind of dictionary that some trainers ask for."""

    def generating(**kwargs):
        made = generate(**kwargs)
        return SimpleNamespace(sequences=made) if kwargs.get("return_dict_in_generate") else made

    return generating


def _spy(trainer, model, tag):
    """Note every sequence that the model generates."""
    original = model.generate
    eos = tokenizer_of(trainer).eos_token_id

    def generate(*args, **kwargs):
        made = original(*args, **kwargs)
        sequences = made if isinstance(made, torch.Tensor) else made.sequences
        width = kwargs["input_ids"].shape[1]
        each = len(sequences) // len(kwargs["input_ids"])
        masks = kwargs["attention_mask"].repeat_interleave(each, 0)
        for sequence, mask in zip(sequences.tolist(), masks.tolist(), strict=True):
            prompt = [token for token, kept in zip(sequence[:width], mask, strict=True) if kept]
            answer = sequence[width:]
            answer = answer[: answer.index(eos) + 1] if eos in answer else answer
            where = {"split": "eval" if _is_evaluating() else "train", "step": trainer.state.global_step}
            trainer.truth.append({"model": tag, "prompt": prompt, "completion": answer, **where})
        return made

    model.generate = generate


def tokenizer_of(trainer):
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def _is_evaluating():
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "evaluation_loop":
            return True
        frame = frame.f_back
    return False


class Engine:
    """What trainers ask of vLLM."""

    def sync_weights(self):
        pass

    def generate(self, prompts, **kwargs):
        self.made = [[30 + i, 31, tok().eos_token_id] for i in range(len(prompts))]
        logprobs = [[[-0.5 - i], [-0.25], [-1.0]] for i in range(len(prompts))]
        return prompts, self.made, logprobs, [[[token] for token in row] for row in self.made]


def through_vllm(trainer):
    """The trainer, generating through something in vLLM's place."""
    trainer.use_vllm, trainer.vllm_generation, trainer.vllm_mode = True, Engine(), "server"
    trainer.vllm_sync_frequency, trainer._last_vllm_sync_step, trainer._last_loaded_step = 2, -1, -1
    return trainer


class _teacher_server:
    """In place of the client of a teacher's server, which only starts where vLLM is installed: a model in here."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        try:
            self.module = import_module("trl.generation.vllm_client")
        except ImportError:
            self.module = None
            return
        path = self.path

        class Client:
            def __init__(self, **kwargs):
                self.model = AutoModelForCausalLM.from_pretrained(path)

            @torch.no_grad()
            def get_sequence_logprobs(self, sequences, prompt_lengths, top_logprobs=1, temperature=1.0):
                out = {"logprobs": [], "logprob_token_ids": [], "actual_logprobs": [], "actual_token_ids": []}
                for ids, length in zip(sequences, prompt_lengths, strict=True):
                    logits = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)[length - 1 : -1]
                    values, tokens = logits.topk(top_logprobs, -1)
                    actual = torch.tensor(ids[length:])[:, None]
                    found = (values, tokens, logits.gather(-1, actual), actual)
                    for key, value in zip(out, found, strict=True):
                        out[key].append(value.tolist())
                return out

        self.before, self.module.VLLMClient = self.module.VLLMClient, Client

    def __exit__(self, *exc):
        if self.module is not None:
            self.module.VLLMClient = self.before


@functools.cache
def tok():
    return AutoTokenizer.from_pretrained(tiny_model(Path(tempfile.mkdtemp(prefix="trainers-"))))
