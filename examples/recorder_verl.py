"""verl's rollouts in the recorder: what its trainer hands to `_dump_generations`.

    python examples/recorder_verl.py
    rollouts show outputs/verl --worst 1

Runs without verl: `Trainer` has the one method of `RayPPOTrainer` that matters. Yours is a subclass of that, with the
same method; set `trainer.rollout_data_dir`, which makes verl call it.
"""

from rollout_plugins import RolloutRecorder
from rollout_plugins.shapes import verl


class Trainer:
    """Calls `_dump_generations` in each step, as verl does."""

    global_steps = 0

    def fit(self, steps: int) -> None:
        for self.global_steps in range(1, steps + 1):
            outputs = ["4", str(self.global_steps), "4", "five"]
            self._dump_generations(
                inputs=["What is 2+2?", "What is 2+2?", "What is 1+3?", "What is 1+3?"],
                outputs=outputs,
                gts=["4"] * 4,
                scores=[float(output == "4") for output in outputs],
                reward_extra_infos_dict={"parsed": [output.isdigit() for output in outputs]},
                dump_path="unused",
            )


class Recording(Trainer):
    def __init__(self, recorder: RolloutRecorder) -> None:
        self.recorder = recorder

    def _dump_generations(self, inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path):  # noqa: PLR0917 - verl's
        found = verl.rollouts(inputs, outputs, gts, scores, reward_extra_infos_dict)
        self.recorder.record(self.global_steps, found)


def main(out: str = "outputs/verl", steps: int = 4) -> None:
    with RolloutRecorder(dir=out, model="verl-toy", trainer="RayPPOTrainer") as recorder:
        Recording(recorder).fit(steps)
    print(f"rollouts show {recorder.run.dir} --step last --worst 1\nrollouts stats {recorder.run.dir}")


if __name__ == "__main__":
    main()
