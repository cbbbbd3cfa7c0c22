"""Score a run again with a stricter reward, list its prompts, and compare its steps.

    python examples/learn_from_a_run.py

The functions are those behind three commands, which print more:

    rollouts rescore outputs/learn examples/learn_from_a_run.py:strict --against correct
    rollouts prompts outputs/learn --by correct
    rollouts diff outputs/learn@1-2 outputs/learn@3- --by correct
"""

from pathlib import Path

from rollout_plugins import open_run
from rollout_plugins.demo.train import train
from rollout_plugins.learn.comparison import compare
from rollout_plugins.learn.disagreement import disagreement
from rollout_plugins.learn.prompts import prompts_of
from rollout_plugins.learn.rescore import rescore


def strict(completions, total, **kwargs):
    """1 for the right total in exactly the expected words, and no call more than the two that are needed."""
    answers = [messages[-1]["content"] for messages in completions]
    rows = zip(completions, answers, total, strict=True)
    return [float(text == f"The total is {right}." and len(messages) <= 5) for messages, text, right in rows]


def main(out: str = "outputs/learn", steps: int = 4) -> None:
    train(Path(out), steps)
    run = open_run(out)

    found = rescore(run, f"{__file__}:strict", against="correct")
    report = disagreement(found)
    print(
        f"strict: {report.old_mean:.2f} → {report.new_mean:.2f}, {report.same_sign:.0%} of advantages keep their sign"
    )
    print(f"  opens the largest disagreement: rollouts show {out} --id {report.largest[0]['id']}")

    prompts = prompts_of(run, by="correct")
    print(f"{len(prompts)} prompts, {prompts.criterion}: {prompts.bands}")

    halves = compare(run, run, "correct", filters_a={"step": "1-2"}, filters_b={"step": "3-"})
    print(f"the first two steps (A) and the others (B): {halves.verdict}, {halves.change}")


if __name__ == "__main__":
    main()
