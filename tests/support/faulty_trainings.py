"""Real GRPO trainings, healthy and with a fault, on the tiny model with scripted answers.

`TRAININGS` has them by name, with the check that should find the fault ("" for a healthy one).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from datasets import Dataset
from rig import call, make
from simulated_runs import vocabulary

from rollout_plugins import RolloutPluginCallback, open_run

STEPS, BATCH, GROUP = 10, 32, 4
PRAISE = "I have carefully verified every step of this answer."


@dataclass(frozen=True)
class Training:
    check: str
    options: Callable[[random.Random], dict]


TRAININGS: dict[str, Training] = {}


def training(name, check=""):
    def register(options):
        TRAININGS[name] = Training(check, options)
        return options

    return register


def train(folder, name, seed=1, steps=STEPS):
    """Run one of the trainings and return what was recorded."""
    dice = random.Random(seed)
    options = {"script": answers(dice), "rewards": [correct, brief], "rows": questions(dice)} | TRAININGS[
        name
    ].options(dice)
    callback = RolloutPluginCallback(**options.pop("recording", {}))
    trainer = make(
        folder, callbacks=[callback], per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH,
        max_steps=steps, **{"max_completion_length": 400, "num_generations": GROUP, **options},
    )  # fmt: skip
    trainer.train()
    return open_run(folder / "out")


def text(dice, count):
    words, weights = vocabulary()
    return " ".join(dice.choices(words, cum_weights=weights, k=max(1, count)))


def answers(dice, change=lambda answer: answer):
    """Return answers of which some are right and some are brief, two rounds of each training's worth."""
    return [
        change(
            f"{text(dice, dice.randrange(5, 30))} {'right' if dice.random() < 0.4 else 'wrong'} {dice.randrange(99)}"
        )
        for _ in range(STEPS * BATCH * 2)
    ]


def later(dice, change, steps=5):
    """Return answers that change after some steps."""
    plain = answers(dice)
    return [*plain[: steps * BATCH], *map(change, plain[steps * BATCH :])]


def questions(dice, rows=200, **columns):
    prompts = [[{"role": "user", "content": f"{text(dice, 8)} {number}?"}] for number in range(rows)]
    return Dataset.from_dict({"prompt": prompts, **columns})


def said(completion):
    return completion[-1]["content"] or ""


def correct(completions, **kwargs):
    return [float(" right " in said(completion)) for completion in completions]


def brief(completions, **kwargs):
    return [float(len(said(completion)) % 7 < 4) for completion in completions]


@training("healthy chat")
def healthy(dice):
    return {}


@training("healthy, with an evaluation")
def evaluated(dice):
    return {"eval_rows": questions(random.Random(99), 32), "eval_strategy": "steps", "eval_steps": 5}


@training("healthy tools")
def healthy_tools(dice):
    return {"tools": [search], "script": episodes(dice), "max_tool_calling_iterations": 3}


def search(query: str) -> str:
    """
    Search for something.

    Args:
        query: what to search for.

    Returns:
        What was found.
    """
    return " ".join(random.Random(query).choices(vocabulary()[0], k=random.Random(query).randrange(5, 40)))


def broken(query: str) -> str:
    """
    Search for something.

    Args:
        query: what to search for.

    Returns:
        What was found.
    """
    raise TimeoutError("30 s")


def long_winded(query: str) -> str:
    """
    Search for something.

    Args:
        query: what to search for.

    Returns:
        What was found.
    """
    return " ".join(random.Random(query).choices(vocabulary()[0], k=60))[:200]


def episodes(dice, name="search", change=None):
    """Return texts of which some call a tool."""
    texts = answers(dice)
    for at in range(len(texts)):
        if dice.random() < 0.4:
            made = call(name, {"query": text(dice, 3)})
            texts[at] = change(made) if change else made
    return texts


@training("NaN rewards", "rewards-not-finite")
def nan(dice):
    def judge(completions, **kwargs):
        return [float("nan") if dice.random() < 0.05 else 0.5 for _ in completions]

    return {"rewards": [correct, judge]}


@training("rollouts without a reward", "rewards-missing")
def unscored(dice):
    def parsed(completions, **kwargs):
        return [
            None if said(completion)[-1] in "012" else float(len(said(completion)) % 2) for completion in completions
        ]

    return {"rewards": [parsed]}


@training("format reward always 0", "rewards-constant")
def constant(dice):
    def format(completions, **kwargs):  # noqa: A001
        return [0.0] * len(completions)

    return {"rewards": [correct, format]}


@training("reward went silent", "rewards-constant")
def silent(dice):
    calls = []

    def judge(completions, **kwargs):
        calls.append(1)
        return [float(dice.random() < 0.5) if len(calls) < 6 else 0.0 for _ in completions]

    return {"rewards": [correct, judge]}


@training("scores shifted by one row", "rewards-shifted")
def shifted(dice):
    def judge(completions, **kwargs):
        scores = [value * 0.5 + dice.random() * 0.2 for value in correct(completions)]
        return [scores[-1], *scores[:-1]]

    return {"rewards": [correct, judge]}


@training("reward changed its scale", "rewards-scale")
def scale(dice):
    calls = []

    def judge(completions, **kwargs):
        calls.append(1)
        return [dice.random() * (1 if len(calls) < 9 else 100) for _ in completions]

    return {"rewards": [correct, judge]}


@training("everything is right", "rewards-ceiling")
def ceiling(dice):
    return {"rewards": [lambda completions, **kwargs: [1.0] * len(completions)]}


@training("longer is better", "reward-follows-length")
def longer(dice):
    def judge(completions, **kwargs):
        return [len(said(completion)) / 200 for completion in completions]

    return {"rewards": [judge]}


@training("groups too small for the pass rate", "groups-flat")
def flat(dice):
    def rare(completions, **kwargs):
        return [float(dice.random() < 0.15) for _ in completions]

    return {"rewards": [rare], "num_generations": 2}


@training("a tool always fails", "tools-failing")
def failing(dice):
    return {"tools": [broken], "script": episodes(dice, "broken"), "max_tool_calling_iterations": 3}


@training("calls of a tool that does not exist", "tools-unknown")
def unknown(dice):
    return {"tools": [search], "script": episodes(dice, "web_browse"), "max_tool_calling_iterations": 3}


@training("the parser misses calls", "tool-calls-unparsed")
def unparsed(dice):
    return {
        "tools": [search],
        "script": episodes(dice, change=lambda made: made.replace('{"name": "search"', "{name: search")),
        "max_tool_calling_iterations": 3,
    }


@training("results of tools are cut", "tool-results-cut")
def cut(dice):
    return {"tools": [long_winded], "script": episodes(dice, "long_winded"), "max_tool_calling_iterations": 3}


@training("the tool limit ends episodes", "tool-limit")
def limited(dice):
    return {"tools": [search], "script": episodes(dice), "max_tool_calling_iterations": 1}


@training("answers loop", "answers-loop")
def loop(dice):
    return {"script": answers(dice, lambda answer: f"{answer[:20]} {'so it is, ' * 30}"), "max_completion_length": 800}


@training("one answer for all prompts", "answers-duplicate")
def duplicate(dice):
    return {"script": ["I am sorry, but I cannot help with this question."] * 4}


@training("answers are cut off", "answers-truncated")
def truncated(dice):
    return {"script": None, "max_completion_length": 8}


@training("other languages", "language-drifts")
def languages(dice):
    return {
        "script": later(dice, lambda answer: f"{answer} Затем ответ 接下来是答案 そして"),
        "max_completion_length": 800,
    }


@training("the answer stands in the prompt", "answer-in-prompt")
def leaked(dice):
    solutions = [str(dice.randrange(1000, 9999)) for _ in range(200)]
    rows = [[{"role": "user", "content": f"{text(dice, 8)}? Hint: {solution}"}] for solution in solutions]
    return {"rows": Dataset.from_dict({"prompt": rows, "answer": solutions})}


@training("evaluation prompts are trained on", "eval-in-train")
def trained_on(dice):
    rows = questions(dice, 40)
    return {"rows": rows, "eval_rows": rows.select(range(16)), "eval_strategy": "steps", "eval_steps": 5}


@training("an object that cannot be stored", "values-lost")
def lost(dice):
    def judge(completions, log_extra=None, **kwargs):
        if log_extra:
            log_extra("parsed", [object() for _ in completions])
        return correct(completions)

    return {"rewards": [judge]}
