"""tinker-cookbook's trajectory groups in the recorder: several transitions, and episodes that end early.

    python examples/recorder_tinker.py
    rollouts show outputs/tinker --worst 1

Runs without tinker: the dataclasses are those of `tinker_cookbook.rl.types`, as far as they are read. In a training
script `record` stands after the groups were sampled, in sync and in async loops.
"""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from rollout_plugins import RolloutRecorder
from rollout_plugins.shapes import tinker


@dataclass
class Ids:
    """Stands for `tinker.ModelInput` as an observation, and for `TokensWithLogprobs` as an action."""

    tokens: list[int]
    maybe_logprobs: list[float] | None = None
    stop_reason: str = "stop"

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass
class Transition:
    ob: Ids
    ac: Ids
    reward: float
    episode_done: bool
    metrics: dict[str, float] = field(default_factory=dict)
    trace: Any = None


@dataclass
class Trajectory:
    transitions: list[Transition]


async def episode(answers: list[str]) -> Trajectory:
    """The environment changes `history` as it goes; each trace is a copy from before its step."""
    history = [{"role": "user", "content": "A number between 1 and 9?"}]
    transitions = []
    for answer in answers:
        parsed = answer.isdigit()
        trace = tinker.RolloutTrace(
            prompt=history, policy_response=answer, reward_data={"distance": abs(int(answer) - 7) if parsed else 9.0}
        )
        history.append({"role": "assistant", "content": answer})
        history.append({"role": "user", "content": "higher" if parsed and int(answer) < 7 else "yes"})
        done = not parsed or answer == "7"
        seen, said = Ids(list(range(len(history)))), Ids([len(answer)], [-0.1])
        transitions.append(
            Transition(seen, said, float(answer == "7"), done, {} if parsed else {"parse_error": 1.0}, trace)
        )
    return Trajectory(transitions)


async def main(out: str = "outputs/tinker", steps: int = 3) -> None:
    async with RolloutRecorder(dir=out, model="tinker-toy") as recorder:
        for step in range(1, steps + 1):
            games = [await episode(answers) for answers in (["3", "5", "7"], ["7"], ["4", "seven"])]
            group = SimpleNamespace(  # TrajectoryGroup
                trajectories_G=games, final_rewards_G=[0.0, 0.5, -1.0], metrics_G=[{}, {}, {}]
            )
            await recorder.arecord(step, tinker.rollouts(group, tags=[["guess"]]), policy_step=step - 1)
    print(f"rollouts show {recorder.run.dir} --step last --worst 1\nrollouts stats {recorder.run.dir}")


if __name__ == "__main__":
    asyncio.run(main())
