"""AReaL's trajectories in the recorder: several turns, a rejected episode, versions of the policy.

    python examples/recorder_areal.py
    rollouts show outputs/areal --best 1

Runs without AReaL: `episode` returns the dict of tensors that its `MultiTurnWorkflow` returns, or None. In a training
script `record` stands after `rollout_batch`, and `tokenizer` is the model's.
"""

import torch

from rollout_plugins import RolloutRecorder
from rollout_plugins.shapes import areal


class Tokenizer:
    """One token for each character."""

    eos_token_id = ord("\n")

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def episode(tokenizer: Tokenizer, question: str, version: int, *, right: bool) -> dict[str, torch.Tensor] | None:
    """Asked once, and again after a wrong answer. Questions without numbers are rejected."""
    if not any(character.isdigit() for character in question):
        return None
    turns = [(f"{question} ", 0), ("5\n", 1)]
    if right:
        turns = [(f"{question} ", 0), ("5\n", 1), ("Wrong, again: ", 0), ("4\n", 1)]
    ids = [(token, mask) for text, mask in turns for token in tokenizer.encode(text)]
    mask = torch.tensor([mask for _, mask in ids])
    tensors = {
        "input_ids": torch.tensor([token for token, _ in ids]),
        "loss_mask": mask,
        "logprobs": -0.5 * mask,
        "versions": torch.where(mask == 1, version, -1),
        "attention_mask": torch.ones_like(mask, dtype=torch.bool),
        "rewards": torch.tensor(float(right)),
    }
    return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


def main(out: str = "outputs/areal", steps: int = 3) -> None:
    tokenizer = Tokenizer()
    questions = ["2 + 2?", "two and two?", "1 + 3?"]
    with RolloutRecorder(dir=out, model="areal-toy", tokens=True) as recorder:
        for step in range(1, steps + 1):
            trajectories = [episode(tokenizer, q, version=step - 1, right=n % 2 == 0) for n, q in enumerate(questions)]
            data = [{"messages": [{"role": "user", "content": question}], "answer": "4"} for question in questions]
            recorder.record(step, areal.rollouts(trajectories, tokenizer, data=data))
    print(f"rollouts show {recorder.run.dir} --step last --best 1\nrollouts stats {recorder.run.dir}")


if __name__ == "__main__":
    main()
