"""Batches as AReaL, tinker-cookbook and torchforge have them in memory."""

import threading

import torch
from shape_rig import (
    Completion,
    Episode,
    Ids,
    Trajectory,
    TrajectoryGroup,
    Transition,
    keep,
)

from rollout_plugins.shapes import tinker

DECODED_ON = []


class Letters:
    """A tokenizer whose tokens are characters."""

    eos_token_id = ord(".")

    def decode(self, ids):
        DECODED_ON.append(threading.current_thread())
        return "".join(map(chr, ids))


LETTERS = Letters()
TALK = [("What is 2+2? ", 0), ("It is 5.", 1), (" <tool_response>no</tool_response> ", 0), ("It is 4.", 1)]


def trajectory(*talks, version=3, pad=0):
    """Talks as AReaL pads them: a row each, with what is behind the last token masked."""
    rows = [[(ord(letter), mask) for text, mask in talk for letter in text] for talk in talks]
    longest = max(map(len, rows)) + pad
    padded = [row + [(0, 0)] * (longest - len(row)) for row in rows]
    mask = torch.tensor([[wrote for _, wrote in row] for row in padded])
    return {
        "input_ids": torch.tensor([[token for token, _ in row] for row in padded]),
        "loss_mask": mask,
        "attention_mask": torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in rows], dtype=torch.bool
        ),
        "logprobs": -0.25 * mask,
        "versions": torch.where(mask == 1, version + (mask.cumsum(1) > 8).long(), -1),
        "rewards": torch.arange(len(rows), dtype=torch.float32),
    }


def transition(prompt, answer, reward=0.0, **more):
    trace = tinker.RolloutTrace(prompt=prompt, policy_response=answer, reward_data={"raw": reward})
    return Transition(Ids([1] * len(prompt)), Ids([2]), reward, trace=trace, **more)


def group(rewards, finals=None, metrics=None):
    """A trajectory for each list of rewards, a transition for each reward; every text says where it belongs."""
    trajectories = []
    for number, some in enumerate(rewards):
        history = [{"role": "user", "content": "asked"}]
        steps = []
        for turn, reward in enumerate(some):
            steps.append(transition(history, f"answer {number}.{turn}", reward))
            history += [{"role": "assistant", "content": f"answer {number}.{turn}"}, {"role": "user", "content": "on"}]
        trajectories.append(Trajectory(steps))
    count = len(rewards)
    return TrajectoryGroup(
        trajectories, finals or [0.5 * n for n in range(count)], metrics or [{"n": n} for n in range(count)]
    )


def episode(response="4", **more):
    completion = Completion(
        torch.tensor([7, 8]), torch.tensor([4, 5, 6]), torch.tensor([-0.5, -0.25, -1.0]), 11, "length"
    )
    facts = {
        "episode_id": f"id-{response}", "target": "4", "request": "2+2?", "response": response, "completion": completion,
        "ref_logprobs": torch.tensor([-0.75, -0.5, -2.0, 0.0]), "reward": 0.5, "advantage": -0.25,
        "reward_breakdown": {"MathReward": 1.0, "ThinkingReward": 0.0},
    }  # fmt: skip
    return Episode(**{**facts, **more})


class Objects:
    """Objects to being turned into anything."""

    def __float__(self):
        raise RuntimeError("no")

    __len__ = __iter__ = __bool__ = item = __float__


def begun(folder, batch, **options):
    """A recorder that has seen a good batch is past the point where mistakes are raised."""
    run = keep(folder, [{"prompt": "a", "completion": "b"}], batch, **options)
    return list(run.rollouts(step=2, tokens=bool(options))), run
