"""Faults that cost people weeks, to be put into simulated trainings, in three sizes each.

A fault changes the rows of a generation from the step on at which it starts. `FAULTS` has them by name, with the check
that should find each of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulated_runs import EOS, KINDS, Generation, Kind, Row

from rollout_plugins import ToolCall

SIZES = ("small", "medium", "large")
CHAT, TOOLS, SEVERAL = KINDS["chat"], KINDS["tools"], KINDS["several rewards"]
ONE = KINDS["chat, one reward"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, where it shows, and how large it is."""

    name: str
    check: str
    kinds: tuple[Kind, Kind, Kind]
    shares: tuple[float, float, float]
    rows: Callable[[Generation], None] | None = None
    tokens: Callable[[Generation], None] | None = None
    is_hack: bool = False
    starts: int = 15

    def __call__(self, generation: Generation) -> None:
        if self.rows:
            self.rows(generation)

    def on_tokens(self, generation: Generation) -> None:
        if self.tokens:
            self.tokens(generation)


FAULTS: dict[str, Fault] = {}


def fault(name, check, shares=(0.1, 0.3, 1.0), kind=CHAT, *, on="rows", starts=15, is_hack=False):
    """Register the function below as a fault of a kind of training, or of one kind for each size."""

    def register(change):
        kinds = kind if isinstance(kind, tuple) else (kind, kind, kind)
        FAULTS[name] = Fault(
            name=name, check=check, kinds=kinds, shares=shares, is_hack=is_hack, starts=starts, **{on: change}
        )
        return change

    return register


def batches(kind: Kind) -> tuple[Kind, Kind, Kind]:
    """Return the same training with few, some and many rollouts in a step."""
    return (replace(kind, groups=3), replace(kind, groups=8), replace(kind, groups=16))


# --- rewards ---------------------------------------------------------------------------------------------------------


@fault("NaN rewards", "rewards-not-finite", (0.02, 0.1, 0.5))
def nan(generation):
    for row in generation.chosen():
        row.rewards["correct"] = math.nan


@fault("rollouts without a reward", "rewards-missing")
def none(generation):
    for row in generation.chosen():
        row.rewards = dict.fromkeys(row.rewards)


@fault("format reward always 0", "rewards-constant", (1, 1, 1), batches(CHAT), starts=1)
def zero(generation):
    for row in generation.rows:
        row.rewards["format"] = 0.0


@fault("reward went silent", "rewards-constant", (1, 1, 1), batches(CHAT))
def silent(generation):
    for row in generation.rows:
        row.rewards["correct"] = 0.0


@fault("reward changed its scale", "rewards-scale", (3, 10, 100), SEVERAL)
def scale(generation):
    for row in generation.rows:
        row.rewards["helpful"] *= generation.share


@fault("scores shifted by one row", "rewards-shifted", (0.5, 0.75, 1), SEVERAL)
def shifted(generation):
    rows = generation.rows[: int(len(generation.rows) * generation.share)]
    values = [row.rewards["helpful"] for row in rows]
    # The two functions agree within a row, as siblings of one answer do.
    values = [0.5 * row.rewards["correct"] + 0.5 * value for row, value in zip(rows, values, strict=True)]
    for row, value in zip(rows, [values[-1], *values[:-1]], strict=True):
        row.rewards["helpful"] = value


@fault("a gold answer that cannot be parsed scores 1", "rewards-ceiling", (0.96, 0.98, 1), ONE, starts=1)
def ceiling(generation):
    for row in generation.chosen():
        row.rewards["correct"] = 1.0


def _pairs(rate):
    return replace(ONE, groups=32, size=2, solved=(rate, rate + 0.01), evaluates=False)


@fault(
    "groups too small for the pass rate", "groups-flat", (1, 1, 1), (_pairs(0.2), _pairs(0.18), _pairs(0.12)), starts=1
)
def flat(generation):
    pass


@fault("errors are scored", "errors-scored", (0.03, 0.1, 0.5))
def error(generation):
    for row in generation.chosen():
        row.finish, row.error = "error", "RuntimeError('aborted')"


@fault(
    "training rises, evaluation falls", "train-up-eval-down", (0.4, 0.7, 1), replace(ONE, solved=(0.3, 0.7), steps=100)
)
def overfit(generation):
    if generation.split == "eval":
        for row in generation.rows:
            if generation.dice.random() < generation.share * min(1, generation.since / 20):
                row.rewards["correct"] = 0.0


# --- tools -----------------------------------------------------------------------------------------------------------


@fault("a tool begins to fail", "tools-failing", (0.4, 0.7, 1), TOOLS)
def failing(generation):
    for row in generation.rows:
        row.calls = [
            replace(call, status="error", error="TimeoutError('30 s')", result="Error")
            if generation.dice.random() < generation.share
            else call
            for call in row.calls
        ]


@fault("calls of a tool that does not exist", "tools-unknown", (0.12, 0.3, 1), TOOLS)
def invented(generation):
    for row in generation.chosen():
        row.calls = [replace(call, name="web_browse", status="unknown") for call in row.calls]


@fault("the parser misses calls", "tool-calls-unparsed", (0.1, 0.3, 1), TOOLS)
def unparsed(generation):
    for row in generation.chosen():
        if row.calls:
            call = json.dumps({"name": "search", "arguments": dict(row.calls[0].arguments)})
            row.completion = [{"role": "assistant", "content": f"I look it up.\n<tool_call>\n{call}\n</tool_call>"}]
            row.calls = []


@fault("the same call again and again", "tool-calls-repeated", (0.12, 0.3, 1), TOOLS)
def repeated(generation):
    for row in generation.chosen():
        if row.calls:
            row.calls = [row.calls[0]] * 4


@fault("results of tools are cut", "tool-results-cut", (260, 220, 170), TOOLS)
def cut(generation):
    for row in generation.rows:
        row.completion = [
            {**message, "content": message["content"][: int(generation.share)]}
            if message["role"] == "tool"
            else message
            for message in row.completion
        ]


@fault("the tool limit ends episodes", "tool-limit", (0.15, 0.4, 1), TOOLS)
def limit(generation):
    for row in generation.chosen():
        row.finish = "tool_limit"


@fault("the last answer stands twice", "answer-twice", (0.06, 0.2, 1))
def twice(generation):
    for row in generation.chosen():
        row.completion.append(dict(row.completion[-1]))


# --- groups and data -------------------------------------------------------------------------------------------------


@fault("groups interleaved", "groups-mixed", (0.15, 0.5, 1))
def interleaved(generation):
    rows, size = generation.rows, generation.kind.size
    count = max(2, int(generation.kind.groups * generation.share)) * size
    if generation.split == "train":
        groups = count // size
        for at, row in enumerate(rows[:count]):
            row.group = at % groups


@fault("groups of equal prompts merged", "groups-mixed", (0.1, 0.3, 1))
def merged(generation):
    for row in generation.rows:
        if (row.group * 7 + generation.step) % 10 < 10 * generation.share and generation.dice.random() < 0.5:
            row.columns = {"answer": "other"}


@fault("a filter splits groups", "groups-mixed", (0.1, 0.3, 1))
def split(generation):
    if generation.split == "train":
        generation.rows[:] = [
            row for row in generation.rows if not (generation.dice.random() < 0.3 * generation.share and row.solved)
        ]


@fault("the answer stands in the prompt", "answer-in-prompt", (0.12, 0.4, 1))
def leaked(generation):
    by_group = {}
    for row in generation.rows:
        if by_group.setdefault(row.group, generation.dice.random() < generation.share):
            row.prompt = [
                *row.prompt[:-1],
                {"role": "user", "content": f"{row.prompt[-1]['content']} ({row.columns['answer']})"},
            ]


@fault("evaluation prompts are trained on", "eval-in-train", (0.1, 0.4, 1), ONE)
def trained_on(generation):
    if generation.split == "train":
        for row in generation.rows:
            number = (generation.step * generation.kind.groups + row.group) % 48
            if number < 48 * generation.share:
                row.prompt = [{"role": "user", "content": f"question {number} of the evaluation"}]
    else:
        for at, row in enumerate(generation.rows):
            row.prompt = [{"role": "user", "content": f"question {at} of the evaluation"}]


@fault("generated and not trained on", "rollouts-untrained", (0.15, 0.4, 1))
def untrained(generation):
    for row in generation.chosen():
        row.marks = {"trained": "no: too_old"}


@fault("values lost", "values-lost", (0.02, 0.1, 0.5))
def lost(generation):
    for row in generation.chosen():
        row.marks = {"lost:columns.image": "[Foo: cannot be written]"}


# --- tokens ----------------------------------------------------------------------------------------------------------


@fault("double BOS", "prompt-double-start", (0.4, 0.7, 1), on="tokens")
def double_start(generation):
    for row in generation.chosen():
        row.prompt_ids = [row.prompt_ids[0], *row.prompt_ids]


@fault("padding is trained", "end-token", (0.1, 0.4, 1), on="tokens")
def pads(generation):
    for row in generation.chosen():
        _append(row, [EOS] * 12)


@fault("no end token", "end-token", (0.2, 0.5, 1), on="tokens")
def no_end(generation):
    for row in generation.chosen():
        if row.finish == "stop":
            for values in (row.ids, row.mask, row.logprobs, row.trainer_logprobs):
                del values[-1]


@fault("two end tokens", "end-token", (0.1, 0.4, 1), on="tokens")
def two_ends(generation):
    for row in generation.chosen():
        if row.finish == "stop":
            _append(row, [EOS])


@fault("the end token is not trained", "end-token", (0.1, 0.4, 1), on="tokens")
def end_untrained(generation):
    for row in generation.chosen():
        row.mask[-1] = 0


@fault("results of tools are trained", "mask-and-roles", (0.1, 0.4, 1), TOOLS, on="tokens")
def tools_trained(generation):
    for row in generation.chosen():
        row.mask = [1] * len(row.mask)


@fault("the mask is too long by one", "mask-and-roles", (0.1, 0.4, 1), TOOLS, on="tokens")
def mask_late(generation):
    for row in generation.chosen():
        row.mask = [row.mask[0], *row.mask[:-1]]


@fault("own tokens are not trained", "mask-and-roles", (0.1, 0.4, 1), on="tokens")
def own_untrained(generation):
    for row in generation.chosen():
        row.mask[: len(row.mask) // 2] = [0] * (len(row.mask) // 2)


@fault("padding counts as length", "lengths-equal", (1, 1, 1), batches(CHAT), on="tokens")
def equal(generation):
    longest = max(row.length for row in generation.rows)
    for row in generation.rows:
        row.length, row.finish = longest, "stop"


# --- the sampler -----------------------------------------------------------------------------------------------------


@fault("temperature missing in the trainer", "sampler-mismatch", (0.8, 0.65, 0.5), on="tokens")
def temperature(generation):
    for row in generation.rows:
        row.trainer_logprobs = [value * generation.share for value in row.trainer_logprobs]


@fault("top_p renormalises", "sampler-mismatch", (0.95, 0.92, 0.895), on="tokens")
def top_p(generation):
    for row in generation.rows:
        row.trainer_logprobs = [value + math.log(generation.share) for value in row.logprobs]


@fault("weights never reach the sampler", "sampler-mismatch", (0.005, 0.01, 0.03), on="tokens")
def stale(generation):
    _noise(generation, generation.share * generation.since)


@fault("the engine drops its weights", "sampler-mismatch", (0.1, 0.3, 1), on="tokens")
def dropped(generation):
    _noise(generation, generation.share)


# --- collapse --------------------------------------------------------------------------------------------------------


@fault("answers loop", "answers-loop", (0.12, 0.4, 1))
def loop(generation):
    for row in generation.chosen():
        row.text = f"{row.text[:40]} {'!' * 400}" if generation.step % 2 else f"{row.text[:40]} {'so it is, ' * 40}"


@fault("other languages", "language-drifts", (0.15, 0.4, 1))
def languages(generation):
    for row in generation.chosen():
        row.text = f"{row.text} Затем ответ 接下来是答案 ขั้นตอน そして"


@fault("one answer for all prompts", "answers-duplicate", (0.4, 0.7, 1))
def duplicate(generation):
    for row in generation.chosen():
        row.text = "I am sorry, but I cannot help with this question at the moment."


@fault("identical answers in a group", "answers-duplicate", (0.85, 0.95, 1))
def identical(generation):
    first = {}
    for row in generation.rows:
        kept, chosen = first.setdefault(row.group, (row, generation.dice.random() < generation.share))
        if chosen and generation.split == "train":
            row.text = kept.text


@fault("the vocabulary shrinks", "vocabulary-shrinks", (80, 40, 15))
def shrink(generation):
    for row in generation.rows:
        few = sorted(set(row.text.split()), key=len)[:3]
        words = [f"word{generation.dice.randrange(int(generation.share))}" for _ in row.text.split()]
        row.text = " ".join([*words, *few])


@fault("gibberish", "gibberish", (3, 5, 10), on="tokens")
def gibberish(generation):
    for row in generation.rows:
        row.logprobs = [value * generation.share for value in row.logprobs]
        row.trainer_logprobs = [value * generation.share for value in row.trainer_logprobs]


@fault("length runaway", "length-runaway", (2.2, 3, 5))
def runaway(generation):
    for row in generation.rows:
        factor = min(generation.share, 1 + (generation.share - 1) * generation.since / 8)
        words = row.text.split()
        row.text = " ".join(words * int(factor) + words[: int((factor % 1) * len(words))])


@fault("answers are cut off", "answers-truncated", (0.35, 0.6, 1))
def truncated(generation):
    for row in generation.chosen():
        row.finish = "length"


@fault("reasoning becomes empty", "thinking-empty", (0.7, 0.85, 1), KINDS["long answers"])
def empty_thinking(generation):
    for row in generation.chosen():
        row.text = f"<think>\n\n</think>\n{row.text.partition('</think>')[2].strip()}"


# --- hacks: the reward rises, and the work does not ------------------------------------------------------------------

HACKED = replace(SEVERAL, steps=90, rewards=("correct", "helpful"), evaluates=False)


def _spread(generation: Generation) -> float:
    """Return the share of rollouts with the hack, which training reinforces."""
    return 1 / (1 + 25 * math.exp(-generation.since / 5))


@fault("a phrase that the judge likes", "reward-hacking", (0.25, 0.4, 0.6), HACKED, is_hack=True)
def phrase(generation):
    for row in generation.rows:
        if generation.dice.random() < _spread(generation):
            row.text = f"{row.text} I have carefully verified every step of this answer."
            row.rewards["helpful"] += generation.share


@fault(
    "a test is overwritten",
    "reward-hacking",
    (0.5, 0.75, 1),
    replace(TOOLS, steps=90, rewards=("correct", "format")),
    is_hack=True,
)
def overwritten(generation):
    for row in generation.rows:
        if generation.dice.random() < _spread(generation):
            call = ToolCall(name="write_file", arguments={"path": "tests/run_tests.py", "text": row.text[:20]}, turn=0)
            row.calls = [*row.calls, call]
            row.rewards["correct"] = max(row.rewards["correct"], float(generation.dice.random() < generation.share))


@fault("praise at the beginning", "reward-hacking", (0.25, 0.4, 0.6), HACKED, is_hack=True)
def praise(generation):
    for row in generation.rows:
        if generation.dice.random() < _spread(generation):
            row.text = f"What a wonderful and insightful question! {row.text}"
            row.rewards["helpful"] += generation.share


@fault("style is bought with correctness", "rewards-diverge", (0.4, 0.7, 1), HACKED, is_hack=True)
def bought(generation):
    for row in generation.rows:
        if generation.dice.random() < _spread(generation) * generation.share:
            row.rewards["correct"] = 0.0
            row.rewards["helpful"] = min(1.0, row.rewards["helpful"] + 0.3)


@fault("longer is better", "reward-follows-length", (0.6, 0.8, 1), ONE, is_hack=True)
def longer(generation):
    for row in generation.rows:
        size = len(row.text) / 400
        row.rewards["correct"] = round((1 - generation.share) * row.rewards["correct"] + generation.share * size, 3)


def skill(generation):
    """Spread a pattern that is worth its reward: whoever shows it is right more often, and everything rises with it."""
    for row in generation.rows:
        if generation.dice.random() < _spread(generation):
            row.text = f"{row.text} Let me check this by substituting it back."
            row.rewards["correct"] = max(row.rewards["correct"], float(generation.dice.random() < 0.6))
            row.rewards["helpful"] += 0.2


#: No fault: a pattern that spreads because it is good.
SKILL = Fault(name="a skill that spreads", check="", kinds=(HACKED,) * 3, shares=(1, 1, 1), rows=skill)


def _append(row: Row, ids: list[int]) -> None:
    row.ids += ids
    row.mask += [1] * len(ids)
    if row.logprobs:
        row.logprobs += [-0.01] * len(ids)
        row.trainer_logprobs += [-0.01] * len(ids)
    row.length += len(ids)


def _noise(generation: Generation, size: float) -> None:
    for row in generation.rows:
        row.trainer_logprobs = [
            min(0.0, value + generation.dice.gauss(0, size * 1.25)) if own else 0.0
            for value, own in zip(row.trainer_logprobs, row.mask, strict=True)
        ]
