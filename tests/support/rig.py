"""Real TRL trainers on a tiny local model whose generations can be scripted, with the truth kept by the trainer itself.

Works on every supported TRL: the script replaces the model's `generate`, nothing of the trainer.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import warnings
from itertools import count
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", CUDA_VISIBLE_DEVICES="")
warnings.filterwarnings("ignore")

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
]  # fmt: skip
_SIMPLE_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_made: dict[str, Path] = {}


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(["hello world the answer is four user assistant tool name arguments"] * 50, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    made.chat_template = _template()
    return made


def _template() -> str:
    """One that this TRL can find tool calls in, where it calls tools."""
    qwen = Path(inspect.getfile(GRPOTrainer)).parents[1] / "chat_templates" / "qwen3.jinja"
    if qwen.exists():
        return qwen.read_text()
    try:
        from trl.chat_template_utils import qwen3_chat_template
    except ImportError:
        return _SIMPLE_TEMPLATE
    return qwen3_chat_template


def tiny_model(folder: Path, layers: int = 1) -> str:
    """A saved model of a few thousand weights, made once per process; ranks are given one by RIG_MODEL."""
    if "RIG_MODEL" in os.environ:
        return os.environ["RIG_MODEL"]
    name = f"tiny-model-{layers}"
    if name not in _made:
        path = folder / name
        tok = tokenizer()
        config = Qwen3Config(
            vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=4096, tie_word_embeddings=False,
        )  # fmt: skip
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
        model.generation_config.eos_token_id = tok.eos_token_id
        model.generation_config.pad_token_id = tok.pad_token_id
        model.save_pretrained(path)
        tok.save_pretrained(path)
        _made[name] = path
    return str(_made[name])


def call(name, arguments) -> str:
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def half(completions, **kwargs):
    return [float(i % 2) for i in range(len(completions))]


def dataset(rows=8, **columns):
    prompts = [[{"role": "user", "content": f"hello {i}"}] for i in range(rows)]
    return Dataset.from_dict({"prompt": prompts, **columns})


class Truth:
    """What the trainer really had: deep copies taken inside it, before any reward function runs."""

    truth: list
    script = None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        before = copy.deepcopy((inputs, prompts, completions))
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        here = self.accelerator.process_index * len(prompts)
        local = rewards[here : here + len(prompts)].tolist()
        split = "train" if self.model.training else "eval"
        self._fresh = [
            {
                "split": split,
                "policy_step": self.state.global_step,
                "prompt": p,
                "completion": c,
                "rewards": r,
                "row": x,
            }
            for x, p, c, r in zip(*before, local, strict=True)
        ]
        self.truth += self._fresh
        return rewards

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        for row, advantage in zip(self._fresh, out["advantages"].tolist(), strict=True):
            row["advantage"] = advantage
        return out


class GRPO(Truth, GRPOTrainer):
    pass


class RLOO(Truth, RLOOTrainer):
    pass


class SamplesTwice(GRPO):
    """What it generates and scores first is thrown away, as dynamic sampling does."""

    def _generate_and_score_completions(self, inputs):
        super()._generate_and_score_completions(inputs)
        return super()._generate_and_score_completions(inputs)


def make(
    folder, script=None, *, cls=GRPO, rewards=half, rows=None, eval_rows=None, callbacks=None, tools=None, **config
):
    """A trainer that takes one step of four completions, two per prompt, unless told otherwise."""
    config_class = RLOOConfig if any("RLOO" in base.__name__ for base in cls.__mro__) else GRPOConfig
    accepted = inspect.signature(config_class.__init__).parameters
    options = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "num_generations": 2, "max_completion_length": 200 if script else 8, "report_to": [], "use_cpu": True,
        "bf16": False, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "max_steps": 1, "seed": 7,
        "log_completions": False, "max_tool_calling_iterations": 1, "gradient_checkpointing": False,
    } | config  # fmt: skip
    args = config_class(**{k: v for k, v in options.items() if k in accepted})
    extra = {"tools": tools} if tools else {}
    more = {k: config[k] for k in ("environment_factory", "rollout_func", "processing_class") if k in config}
    trainer = cls(
        config.get("model") or tiny_model(folder), reward_funcs=rewards, args=args, train_dataset=rows or dataset(), eval_dataset=eval_rows,
        callbacks=callbacks, **extra, **more,
    )  # fmt: skip
    trainer.truth = []
    if script is not None:
        trainer.model.generate = scripted(trainer, script)
    return trainer


def scripted(trainer, script):
    """The model's `generate`, giving the script's texts one after the other, round and round."""
    tok = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    number = count()

    def generate(input_ids=None, **kwargs):
        texts = [script[next(number) % len(script)] for _ in range(input_ids.shape[0])]
        rows = [torch.tensor([*tok(t, add_special_tokens=False)["input_ids"], tok.eos_token_id]) for t in texts]
        made = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tok.pad_token_id)
        return torch.cat([input_ids, made.to(input_ids)], 1)

    return generate
