"""An agent with a slow, asynchronous tool and a fast one, reporting to trackio.

    python examples/agent_two_tools.py
    rollouts view outputs/agent
    TRACKIO_DIR=outputs/agent/trackio trackio show --project agent

`report_to="trackio"` is all the callback needs to send traces there: the charts are TRL's own, the rollouts behind
them stand beside them. Everything stays on this machine.
"""

import asyncio
import os
import warnings
from pathlib import Path

from rollout_plugins import RolloutPluginCallback
from rollout_plugins.demo import shop
from rollout_plugins.testing import model

# TRL still uses names that transformers has given up.
warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing", FutureWarning)


async def price(item: str) -> int:
    """Look up the price of one piece of an item.

    Args:
        item: Name of the item, in the plural.
    """
    await asyncio.sleep(0.01)  # a web service would take its time, too
    return shop.price(item)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a * b


def brief(completions, log_extra, **_):
    """A little less for each tool call beyond the two it takes."""
    calls = [sum(len(message.get("tool_calls") or ()) for message in messages) for messages in completions]
    log_extra("calls", calls)
    return [-0.1 * max(0, count - 2) for count in calls]


def main(out: str = "outputs/agent", steps: int = 15) -> None:
    os.environ["TRACKIO_DIR"] = str(Path(out, "trackio").resolve())  # before the imports: trackio reads it once
    import torch
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)  # a model this small is slower on two
    policy, tokenizer = model.load()
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        tools=[price, multiply],
        reward_funcs=[shop.correct, brief],
        train_dataset=shop.questions(400, seed=1),
        eval_dataset=shop.questions(4, seed=2),
        args=GRPOConfig(
            output_dir=out,
            max_steps=steps,
            eval_strategy="steps",
            eval_steps=5,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=32,
            num_generations=8,
            max_completion_length=160,
            max_tool_calling_iterations=3,
            learning_rate=1e-3,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="trackio",
            project="agent",
            run_name="two-tools",
            bf16=False,
            use_cpu=True,
        ),
    )
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()


if __name__ == "__main__":
    main()
