"""Train, see which prompts the model still has something to learn from, and train on those.

    python examples/weighted_prompts.py
    rollouts prompts outputs/weighted --by correct

The first half of the training gives each prompt a pass rate p. The second half draws prompts in proportion to
p (1 - p): most from those that pass half of the time, few from those that always or never pass, and none is left out
for good.
"""

import random

import torch
from trl import GRPOConfig, GRPOTrainer

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.demo import shop
from rollout_plugins.learn.prompts import prompt_weights
from rollout_plugins.testing import model


def train(policy, tokenizer, dataset, out: str, steps: int) -> None:
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        tools=[shop.price, shop.multiply],
        reward_funcs=[shop.correct, shop.tool_use],
        train_dataset=dataset,
        args=GRPOConfig(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=160,
            max_tool_calling_iterations=3,
            learning_rate=1e-3,
            gradient_checkpointing=False,
            report_to=[],
            bf16=False,
            use_cpu=True,
        ),
    )
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()


def main(out: str = "outputs/weighted", steps: int = 6) -> list[float]:
    torch.set_num_threads(1)  # a model this small is slower on two
    policy, tokenizer = model.load()
    questions = shop.questions(20)
    train(policy, tokenizer, questions, out, steps)

    weights = prompt_weights(open_run(out), power=1, floor=0.05, by="correct").of(questions)
    rows = random.Random(7).choices(range(len(questions)), weights, k=len(questions))
    train(policy, tokenizer, questions.select(rows), out, steps)
    return weights


if __name__ == "__main__":
    main()
