"""Train a tiny model with tools by GRPO, train on its best answers by SFT, and train one of its steps again.

    python examples/train_and_replay.py
    rollouts export outputs/replay --to dpo --margin 0.5 -o pairs
    rollouts replay outputs/replay --step 2 --checkpoint outputs/replay/checkpoint-1 --bisect "grad>0.2"

Takes less than a minute on a CPU, and needs `pip install 'rollout-plugins[demo]'`.
"""

import shutil
from pathlib import Path

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.demo import shop
from rollout_plugins.learn.replay import replay
from rollout_plugins.learn.training_data import export_training_data
from rollout_plugins.testing import model


def main(out: str = "outputs/replay") -> None:
    for folder in (out, f"{out}-rollouts", f"{out}-sft"):
        shutil.rmtree(folder, ignore_errors=True)
    train_with_grpo(out)
    run = open_run(out)

    exported = export_training_data(run, "sft", f"{out}-sft", threshold=0.5)
    print(f"SFT: {exported.rows} of {exported.candidates} rollouts")
    train_with_sft(exported.path, out)

    again = replay(run, step=2, checkpoint=f"{out}/checkpoint-1")
    print(f"step 2 again: loss {again.loss:.6f}, logged as {again.recorded_loss:.6f}: {again.tier}")


def train_with_grpo(out: str) -> None:
    policy, tokenizer = model.load()
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer,
        tools=[shop.price, shop.multiply],
        reward_funcs=[shop.correct, shop.tool_use],
        train_dataset=shop.questions(16),
        args=GRPOConfig(
            output_dir=out,
            max_steps=2,
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=112,
            gradient_checkpointing=False,
            logging_steps=1,
            save_steps=1,
            save_only_model=True,
            report_to=[],
            bf16=False,
            use_cpu=True,
        ),
    )
    trainer.add_callback(RolloutPluginCallback(tokens=True))
    trainer.train()


def train_with_sft(path: Path, out: str) -> None:
    policy, tokenizer = model.load()
    dataset = load_dataset("parquet", data_files=str(path), split="train")
    config = SFTConfig(
        output_dir=f"{out}-sft/model",
        assistant_only_loss=True,
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        bf16=False,
        use_cpu=True,
    )
    SFTTrainer(policy, args=config, train_dataset=dataset, processing_class=tokenizer).train()


if __name__ == "__main__":
    main()
