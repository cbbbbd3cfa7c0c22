"""The pattern to copy: GRPOTrainer with a tool, and one line that keeps every rollout.

    python examples/grpo_five_lines.py
    rollouts view outputs/five-lines

The model, tools and rewards are the demo's, small enough for a CPU; yours go in their place.
"""

import warnings

import torch
from trl import GRPOConfig, GRPOTrainer

from rollout_plugins import RolloutPluginCallback
from rollout_plugins.demo import shop
from rollout_plugins.testing import model

# TRL still uses names that transformers has given up.
warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing", FutureWarning)


def main(out: str = "outputs/five-lines", steps: int = 10) -> None:
    torch.set_num_threads(1)  # a model this small is slower on two
    policy, tokenizer = model.load()
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        tools=[shop.price, shop.multiply],
        reward_funcs=[shop.correct, shop.tool_use],
        train_dataset=shop.questions(200),
        args=GRPOConfig(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=160,
            max_tool_calling_iterations=3,
            learning_rate=1e-3,
            gradient_checkpointing=False,
            logging_steps=1,
            report_to=[],
            bf16=False,
            use_cpu=True,
        ),
    )
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()


if __name__ == "__main__":
    main()
