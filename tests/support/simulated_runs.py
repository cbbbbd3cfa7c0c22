"""Trainings as they are stored, simulated rollout by rollout: healthy ones of several kinds, and faults put into them.

For what a CPU cannot train: long answers, learning over many steps, and faults of engines that need a GPU. Rollouts go
through the store's own columns, so checks read what they would read of a real run.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any

import pyarrow as pa

from rollout_plugins import Rollout, Run, Step, Tokens, ToolCall
from rollout_plugins.store.arrow_rollouts import to_batch

EOS, START, NEWLINE = 2, 1, 5
_SYLLABLES = [
    a + b
    for a in ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "ch"]
    for b in ["a", "e", "i", "o", "u", "ai", "ou"]
]


@cache
def vocabulary(size: int = 4000) -> tuple[list[str], list[float]]:
    """Words and their cumulative weights, as frequent as in a natural language."""
    dice = random.Random(11)
    words = list(
        dict.fromkeys("".join(dice.choices(_SYLLABLES, k=dice.choice((1, 2, 2, 3)))) for _ in range(size * 2))
    )
    return words[:size], list(accumulate(1 / (rank + 3) for rank in range(size)))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a training is like."""

    name: str = "chat"
    steps: int = 60
    groups: int = 8
    size: int = 8
    words: int = 60
    solved: tuple[float, float] = (0.3, 0.55)
    rewards: tuple[str, ...] = ("correct", "format")
    tools: bool = False
    images: bool = False
    tokens: bool = True
    evaluates: bool = False
    thinks: bool = False
    prompts: int = 10_000
    growth: float = 1.0
    stale: int = 0
    cut: float = 0.02
    gap: float = 0.01
    drop: float = 0.0
    answers: bool = True


KINDS = {
    kind.name: kind
    for kind in (
        Kind(),
        Kind(name="chat, one reward", rewards=("correct",), evaluates=True),
        Kind(name="tools", tools=True, words=25),
        Kind(name="tools, small batches", tools=True, words=25, groups=2, size=4, steps=80),
        Kind(name="images", images=True, words=30, tokens=False),
        Kind(name="short answers", words=2, solved=(0.4, 0.8), rewards=("correct",)),
        Kind(name="long answers", words=400, growth=1.5, thinks=True, groups=4),
        Kind(name="easy", solved=(0.7, 0.92), rewards=("correct",)),
        Kind(name="hard", solved=(0.04, 0.12), rewards=("correct",)),
        Kind(name="several rewards", rewards=("correct", "format", "helpful", "length"), evaluates=True),
        Kind(name="asynchronous", stale=3, gap=0.015, groups=8),
        Kind(name="few prompts", prompts=24, words=40, evaluates=True),
    )
}


@dataclass
class Row:
    """A rollout before it is a record: what faults change."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    rewards: dict[str, float | None]
    columns: dict[str, Any]
    calls: list[ToolCall]
    group: int
    group_size: int
    finish: str = "stop"
    length: int = 0
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trainer_logprobs: list[float] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    solved: bool = False
    reward: float | None = None

    @property
    def text(self) -> str:
        return self.completion[-1]["content"]

    @text.setter
    def text(self, value: str) -> None:
        self.completion[-1] = {**self.completion[-1], "content": value}


@dataclass
class Generation:
    """The rollouts of one step, and how far the training is."""

    step: int
    split: str
    rows: list[Row]
    dice: random.Random
    since: int
    """How many steps ago the fault began; below 0 before it."""
    kind: Kind
    share: float
    """How large the fault is, from 0 to 1."""
    before: list[Row] = field(default_factory=list)
    """The rows of the generation before."""

    def chosen(self) -> Iterator[Row]:
        """Yield the rows that the fault reaches."""
        for row in self.rows:
            if self.dice.random() < self.share:
                yield row


Fault = Callable[[Generation], None]


class Simulation:
    """A training, generation by generation."""

    def __init__(
        self, kind: Kind, seed: int, fault: Fault | None = None, share: float = 1.0, starts: int = 15
    ) -> None:
        self.kind, self.fault, self.share, self.starts = kind, fault, share, starts
        self.dice = random.Random(seed)
        words, weights = vocabulary()
        # Every model has its own habits: which words are frequent differs from run to run.
        words = list(words)
        self.dice.shuffle(words)
        self.words, self.weights = words, weights
        self.ids = {word: 10 + place for place, word in enumerate(words)}
        self._openings = [self.text(4) for _ in range(8)]
        self.run = Run(
            id=f"simulated-{seed}",
            trainer="AsyncGRPOTrainer" if kind.stale else "GRPOTrainer",
            reward_names=kind.rewards,
            num_generations=kind.size,
            tools=({"type": "function", "function": {"name": "search"}},) if kind.tools else (),
        )
        self._before: list[Row] = []

    def text(self, count: int) -> str:
        """Return words as this model uses them, with some punctuation."""
        chosen = self.dice.choices(self.words, cum_weights=self.weights, k=max(count, 1))
        for at in range(9, len(chosen), 11):
            chosen[at] += self.dice.choice((".", ",", ".\n", f" {self.dice.randrange(1000)}"))
        return " ".join(chosen)

    def generations(self) -> Iterator[tuple[Step, list[Rollout]]]:
        """Yield every generation in order, evaluations among them."""
        number = 0
        for step in range(1, self.kind.steps + 1):
            yield self._made(step, "train", number)
            number += 1
            if self.kind.evaluates and step % 10 == 0:
                yield self._made(step, "eval", number)
                number += 1

    def tables(self) -> Iterator[tuple[Step, pa.Table]]:
        """Yield every generation as the columns of the store."""
        for step, rollouts in self.generations():
            yield step, pa.Table.from_batches([to_batch(rollouts, [])])

    def _made(self, step: int, split: str, number: int) -> tuple[Step, list[Rollout]]:
        kind = self.kind
        progress = step / kind.steps
        rows: list[Row] = []
        groups, size = (kind.groups, kind.size) if split == "train" else (48, 1)
        for group in range(groups):
            rows += self._group(group, size, progress, split)
        generation = Generation(step, split, rows, self.dice, step - self.starts, kind, self.share, self._before)
        if self.fault and generation.since >= 0:
            self.fault(generation)
        self._before = rows
        self._tokens(rows)
        if self.fault and generation.since >= 0 and hasattr(self.fault, "on_tokens"):
            self.fault.on_tokens(generation)
        rollouts = self._rollouts(generation, number)
        return Step(split=split, step=step, generation=number, seen=len(rollouts)), rollouts

    def _group(self, group: int, size: int, progress: float, split: str) -> list[Row]:
        kind, dice = self.kind, self.dice
        number = dice.randrange(kind.prompts) if split == "train" else 1_000_000 + group
        own = random.Random(number)
        answer = str(own.randrange(1000, 10_000))
        question = " ".join(own.choices(self.words, k=12)) + f" {own.randrange(100)}?"
        content: Any = [{"type": "image"}, {"type": "text", "text": question}] if kind.images else question
        prompt = [{"role": "system", "content": "You help with questions."}, {"role": "user", "content": content}]
        easy, late = kind.solved
        rate = easy + (late - easy) * min(1, progress * 1.3)
        # Prompts differ in how hard they are.
        rate = 1 / (1 + math.exp(-(math.log(rate / (1 - rate)) + own.gauss(0, 0.8))))
        return [self._row(group, size, prompt, answer, rate, progress) for _ in range(size)]

    def _row(self, group: int, size: int, prompt: Any, answer: str, rate: float, progress: float) -> Row:
        kind, dice = self.kind, self.dice
        solved = dice.random() < rate
        count = max(1, int(kind.words * math.exp(dice.gauss(0, 0.35)) * (1 + (kind.growth - 1) * progress)))
        said = answer if solved else str(dice.randrange(1000, 10_000))
        boxed = dice.random() < 0.5 + 0.45 * progress
        opening = dice.choice(self._openings) + " " if dice.random() < 0.4 else ""
        body = said if kind.words < 5 else f"{opening}{self.text(count)} {'Answer: ' if boxed else ''}{said}"
        if kind.thinks:
            body = f"<think>\n{self.text(count // 2)}\n</think>\n{body}"
        completion, calls = self._episode(dice.choice((0, 1, 1, 2, 3))) if kind.tools else ([], [])
        completion.append({"role": "assistant", "content": body})
        rewards: dict[str, float | None] = {}
        for name in kind.rewards:
            if name == "correct":
                rewards[name] = float(solved)
            elif name == "format":
                rewards[name] = float(boxed)
            elif name == "helpful":
                rewards[name] = round(min(1, max(0, dice.gauss(0.4 + 0.15 * solved + 0.05 * progress, 0.15))), 3)
            else:
                rewards[name] = round(-abs(count - kind.words) / kind.words, 3)
        finish = "length" if dice.random() < kind.cut else "stop"
        columns = {"answer": answer} if kind.answers else {}
        return Row(prompt, completion, rewards, columns, calls, group, size, finish, solved=solved)

    def _episode(self, count: int) -> tuple[list[dict[str, Any]], list[ToolCall]]:
        dice, messages, calls = self.dice, [], []
        for turn in range(count):
            arguments = {"query": self.text(3)}
            failed = dice.random() < 0.08
            result = "Error: timeout" if failed else self.text(dice.randrange(10, 60))
            function = {"name": "search", "arguments": arguments}
            said = self.text(5)
            messages += [
                {"role": "assistant", "content": said, "tool_calls": [{"type": "function", "function": function}]},
                {"role": "tool", "name": "search", "content": result},
            ]
            error = "TimeoutError('10 s')" if failed else None
            status = "error" if failed else "ok"
            calls.append(
                ToolCall(
                    name="search",
                    arguments=arguments,
                    turn=2 * turn,
                    reply=2 * turn + 1,
                    result=result,
                    error=error,
                    status=status,
                    seconds=0.1,
                )
            )
        return messages, calls

    def _tokens(self, rows: list[Row]) -> None:
        dice = self.dice
        for row in rows:
            row.length = 0
            for at, message in enumerate(row.completion):
                text = message["content"] if isinstance(message["content"], str) else ""
                own = message["role"] == "assistant"
                ids = [self.ids.get(word, 4000 + hash(word) % 1000) for word in text.split()]
                ends = own and not (row.finish == "length" and at == len(row.completion) - 1)
                ids += [EOS] if ends else []
                if not own:
                    ids = [NEWLINE, START, *ids, EOS, NEWLINE, START]
                row.ids += ids
                row.mask += [int(own)] * len(ids)
                row.length += len(ids) * own
            prompt = " ".join(str(message["content"]) for message in row.prompt)
            row.prompt_ids = [START, *(self.ids.get(word, 7) for word in prompt.split()), NEWLINE, START]
            if self.kind.tokens:
                row.logprobs = [min(-0.001, -dice.expovariate(2.0)) if own else 0.0 for own in row.mask]
                gap = self.kind.gap * (1 + 0.3 * self.kind.stale)
                row.trainer_logprobs = [
                    min(0.0, value + dice.gauss(0, gap * 1.25)) if own else 0.0
                    for value, own in zip(row.logprobs, row.mask, strict=True)
                ]

    def _rollouts(self, generation: Generation, number: int) -> list[Rollout]:
        made, kind = [], self.kind
        means: dict[int, list[float]] = {}
        for row in generation.rows:
            if row.reward is None:
                given = [value for value in row.rewards.values() if value is not None]
                # As TRL's sum does, NaN and None count as nothing.
                row.reward = sum(value for value in given if not math.isnan(value)) if given else None
            if row.reward is not None:
                means.setdefault(row.group, []).append(row.reward)
        for index, row in enumerate(generation.rows):
            own = means.get(row.group, [0.0])
            mean = sum(own) / len(own)
            spread = math.sqrt(sum((value - mean) ** 2 for value in own) / len(own)) + 1e-4
            tokens = Tokens(
                prompt=row.prompt_ids,
                completion=row.ids,
                mask=row.mask,
                logprobs=row.logprobs,
                trainer_logprobs=row.trainer_logprobs,
            )
            finish: Any = row.finish
            made.append(
                Rollout(
                    id=f"{generation.step}-{generation.split}-{index}",
                    run_id=self.run.id,
                    split=generation.split,
                    step=generation.step,
                    policy_step=max(0, generation.step - 1 - kind.stale),
                    generation=number,
                    index=index,
                    group=row.group,
                    group_size=row.group_size,
                    prompt=tuple(row.prompt),
                    completion=tuple(row.completion),
                    tool_calls=tuple(row.calls),
                    rewards=row.rewards,
                    reward=row.reward,
                    advantage=None if row.reward is None else (row.reward - mean) / spread,
                    prompt_tokens=len(row.prompt_ids),
                    completion_tokens=row.length,
                    finish=finish,
                    columns=row.columns,
                    marks=row.marks,
                    error=row.error,
                    tokens=tokens if kind.tokens else None,
                )
            )
        return made


def described(row: Row) -> str:
    """Return a row in short, for messages of tests."""
    return json.dumps({"text": row.text[:60], "rewards": row.rewards})


def with_steps(kind: Kind, steps: int) -> Kind:
    """Return the same kind of training with another length."""
    return replace(kind, steps=steps)
