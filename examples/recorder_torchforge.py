"""torchforge's Episodes in the recorder: a score for each reward, groups, versions of the policy.

    python examples/recorder_torchforge.py
    rollouts show outputs/torchforge --best 1

Runs without torchforge: the dataclasses are those of its GRPO app. There, `record` stands where a group of episodes
got its advantages, before `replay_buffer.add`.
"""

import statistics
import uuid
from dataclasses import dataclass
from typing import Any

import torch

from rollout_plugins import RolloutRecorder
from rollout_plugins.shapes import torchforge


@dataclass
class Completion:
    prompt_ids: torch.Tensor
    token_ids: torch.Tensor
    logprobs: torch.Tensor
    generator_version: int


@dataclass
class Episode:
    episode_id: str
    pad_id: int
    request_len: int
    response_len: int
    target: Any = None
    request: str | None = None
    response: str | None = None
    completion: Completion | None = None
    ref_logprobs: torch.Tensor | None = None
    reward: float | None = None
    reward_breakdown: dict[str, float] | None = None
    advantage: float | None = None

    @property
    def policy_version(self) -> int | None:
        return self.completion.generator_version if self.completion else None


def episode(question: str, target: str, response: str, version: int) -> Episode:
    ids = [torch.tensor(list(text.encode())) for text in (question, response)]
    rewards = {"MathReward": float(response == target), "ThinkingReward": float("because" in response)}
    return Episode(
        episode_id=str(uuid.uuid4()),
        pad_id=0,
        request_len=64,
        response_len=16,
        target=target,
        request=question,
        response=response,
        completion=Completion(*ids, torch.full(ids[1].shape, -0.7), version),
        ref_logprobs=torch.full((16,), -0.9),
        reward=sum(rewards.values()) / len(rewards),
        reward_breakdown=rewards,
    )


def main(out: str = "outputs/torchforge", steps: int = 3) -> None:
    with RolloutRecorder(dir=out, model="forge-toy", tokens=True) as recorder:
        for step in range(1, steps + 1):
            group = [episode("2+2?", "4", response, step - 1) for response in ("4", "5", "because")]
            mean = statistics.mean(one.reward for one in group)
            for one in group:
                one.advantage = one.reward - mean
            recorder.record(step, torchforge.rollouts([group]))
    print(f"rollouts show {recorder.run.dir} --step last --best 1\nrollouts stats {recorder.run.dir}")


if __name__ == "__main__":
    main()
