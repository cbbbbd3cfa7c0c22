"""A real GRPOTrainer on a tiny model whose generations are scripted by the test. Needs torch and TRL."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from rollout_plugins.errors import SetupError, need


def call(name: str, **arguments: Any) -> str:
    """Return the text with which the scripted model calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripted_grpo(
    folder: str | os.PathLike[str],
    script: Sequence[str],
    *,
    tools: Sequence[Callable[..., Any]] = (),
    rewards: Any = None,
    dataset: Any = None,
    **config: Any,
) -> Any:
    """Return a GRPOTrainer that takes one step of four completions, two for each prompt, on this machine's CPU.

    Only the model's `generate` is scripted: it returns the script's texts in order, again and again. The tool loop,
    the rewards, the loss and the update are the trainer's own. Add the callback and train:

        trainer = scripted_grpo(tmp_path, ["42", "no idea"])
        trainer.add_callback(RolloutPluginCallback([MyPlugin()], strict=True))
        trainer.train()
        rollouts = list(open_run(tmp_path / "out").rollouts())

    Args:
        folder: `output_dir` becomes `<folder>/out`.
        script: the texts that the model writes. With tools, the first turns of all completions come first, then the
            next turns of those that called a tool; `call("multiply", a=6, b=7)` returns a call.
        tools: functions with docstrings in Google's style, as TRL expects them.
        rewards: reward functions; by default 0 and 1 alternate.
        dataset: training rows; by default eight short questions.
        config: options of `GRPOConfig`, for example `max_steps=3`.
    """
    need("torch", "demo")
    need("trl", "trl")
    from trl import GRPOTrainer

    from rollout_plugins.testing.model import load

    if not script:
        raise SetupError("script is empty: give the texts that the model writes, for example ['42']")
    accepted = inspect.signature(GRPOTrainer).parameters
    if tools and "tools" not in accepted:
        raise SetupError("GRPOTrainer of the installed TRL has no tools: pip install -U trl")
    model, tokenizer = load()
    trainer = GRPOTrainer(
        model,
        processing_class=tokenizer,
        reward_funcs=rewards or _alternating,
        args=_config(Path(folder) / "out", config),
        train_dataset=dataset or _questions(),
        **({"tools": list(tools)} if tools else {}),
    )
    trainer.model.generate = _scripted(tokenizer, cycle(script))
    return trainer


def _config(out: Path, config: dict[str, Any]) -> Any:
    from trl import GRPOConfig

    accepted = inspect.signature(GRPOConfig).parameters
    for name in config:
        if name not in accepted:
            raise SetupError(f"GRPOConfig of the installed TRL has no option {name!r}")
    defaults = {
        "output_dir": str(out),
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 256,
        "max_tool_calling_iterations": 2,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": 7,
    }
    return GRPOConfig(**{name: value for name, value in {**defaults, **config}.items() if name in accepted})


def _questions() -> Any:
    from datasets import Dataset

    prompts = [[{"role": "user", "content": f"What is {number} times 7?"}] for number in range(8)]
    return Dataset.from_dict({"prompt": prompts, "answer": [number * 7 for number in range(8)]})


def _alternating(completions: Sequence[Any], **_: Any) -> list[float]:
    return [float(number % 2) for number in range(len(completions))]


def _scripted(tokenizer: Any, texts: Iterator[str]) -> Callable[..., Any]:
    """Return a replacement for the model's `generate` that reads from the script."""
    import torch

    def generate(input_ids: Any = None, **_: Any) -> Any:
        next_texts = [next(texts) for _ in range(input_ids.shape[0])]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in next_texts]
        rows = [torch.tensor([*row, tokenizer.eos_token_id]) for row in ids]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
        return torch.cat([input_ids, padded.to(input_ids)], 1)

    return generate
