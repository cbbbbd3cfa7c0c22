"""GRPO with two tools, from nothing to rollouts on the screen: a CPU, no network, under a minute.

python examples/tutorial.py
rollouts view outputs/tutorial
"""

import random
import re
import warnings

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rollout_plugins import RolloutPluginCallback
from rollout_plugins.testing import model

# TRL still uses names that transformers has given up.
warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing", FutureWarning)

PRICES = {"books": 9, "chairs": 19, "cups": 4, "hats": 11, "lamps": 17, "plates": 7}


# Tools: plain functions. The model sees their names, types and docstrings.


def price(item: str) -> int:
    """Look up the price of one piece of an item.

    Args:
        item: Name of the item, in the plural.
    """
    if item not in PRICES:
        raise ValueError(f"no item named '{item}'")
    return PRICES[item]


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a * b


# Rewards: a number for each completion. Dataset columns arrive as arguments.


def correct(completions, total, **_):
    """1 when the last number of the answer is the right total."""
    pairs = zip(completions, total, strict=True)
    return [float(last_number(messages[-1]) == right) for messages, right in pairs]


def last_number(message):
    numbers = re.findall(r"\d+", str(message.get("content")))
    return int(numbers[-1]) if numbers else None


def brief(completions, **_):
    """A little less for each tool call beyond the two that it takes."""
    return [-0.1 * max(0, calls_in(messages) - 2) for messages in completions]


def calls_in(messages):
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def questions(count: int) -> Dataset:
    dice = random.Random(1)
    rows = [question(dice.choice(sorted(PRICES)), dice.randint(2, 12)) for _ in range(count)]
    return Dataset.from_list(rows)


def question(item: str, n: int) -> dict:
    asked = {"role": "user", "content": f"How much are {n} {item}?"}
    return {"prompt": [asked], "total": n * PRICES[item]}


def main(out: str = "outputs/tutorial", steps: int = 15) -> None:
    torch.set_num_threads(1)  # a model this small is slower on two
    policy, tokenizer = model.load()  # two thin layers, part of the package
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        tools=[price, multiply],
        reward_funcs=[correct, brief],
        train_dataset=questions(200),
        args=GRPOConfig(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=160,
            max_tool_calling_iterations=3,
            learning_rate=5e-4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            bf16=False,
            use_cpu=True,
        ),
    )
    trainer.add_callback(RolloutPluginCallback())  # the one line that keeps every rollout
    trainer.train()


if __name__ == "__main__":
    main()
