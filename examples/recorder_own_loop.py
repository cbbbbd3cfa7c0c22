"""An own training loop that keeps every rollout: the pattern to copy.

    python examples/recorder_own_loop.py
    rollouts stats outputs/own-loop

The "policy" learns to add by leaving out wrong answers; your sampler, rewards and update go in its place.
"""

import random

from rollout_plugins import RolloutRecorder


class Policy:
    """Answers sums, wrongly less and less often."""

    def __init__(self) -> None:
        self.dice = random.Random(7)
        self.mistakes = 0.7

    def answer(self, a: int, b: int) -> str:
        return str(a + b + (self.dice.randint(1, 3) if self.dice.random() < self.mistakes else 0))

    def update(self) -> None:
        self.mistakes *= 0.8


def rollout(policy: Policy, a: int, b: int) -> dict:
    """A dict with the fields of `Rollout`: what there is; the rest stays empty."""
    said = policy.answer(a, b)
    return {
        "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
        "completion": [{"role": "assistant", "content": said}],
        "rewards": {"correct": float(said == str(a + b)), "brief": float(len(said) < 3)},
        "columns": {"answer": a + b},
    }


def main(out: str = "outputs/own-loop", steps: int = 12) -> None:
    policy, dice = Policy(), random.Random(3)
    recorder = RolloutRecorder(
        dir=out,
        model="adder",
        reward_names=["correct", "brief"],
        reward_weights=[1.0, 0.1],
        settings={"group_size": 4},
    )
    with recorder:
        for step in range(1, steps + 1):
            sums = [(dice.randint(1, 60), dice.randint(1, 60)) for _ in range(8)]
            rollouts = [rollout(policy, a, b) for a, b in sums for _ in range(4)]
            recorder.record(step, rollouts, policy_step=step - 1, group_size=4)
            policy.update()
            recorder.flush()  # only so that the numbers of this step are there to print
            print(step, {name: round(n, 3) for name, n in recorder.metrics().items() if "/groups/" in name})
    print(f"\nrollouts stats {recorder.run.dir}\nrollouts show {recorder.run.dir} --step last --worst 2")


if __name__ == "__main__":
    main()
