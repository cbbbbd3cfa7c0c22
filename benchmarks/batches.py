"""Generation batches as an agent run has them: Zipf-distributed words, groups that share a prompt, tool calls."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

GROUP = 8
_ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "io"]
_ENDS = ["", *["n", "r", "s", "t", "l", "nd", "st", "ng", "ck", "m"]]


@dataclass(slots=True)
class Batch:
    """What a trainer holds when it computes rewards."""

    inputs: list[dict[str, Any]]
    prompts: list[list[dict[str, Any]]]
    completions: list[list[dict[str, Any]]]
    ids: list[list[int]]
    prompt_ids: list[list[int]]
    masks: list[list[int]]
    rewards: list[list[float]]
    advantages: list[float]
    images: list[list[Any]] | None = None
    distinct_images: int = 0
    text_bytes: int = field(default=0)


class Writer:
    """Pseudo-English from a private random generator."""

    def __init__(self, seed: int, vocabulary: int = 12_000) -> None:
        self.dice = random.Random(seed)
        self._words = list(dict.fromkeys(self._word() for _ in range(vocabulary)))
        self._weights = list(accumulate(1 / (rank + 2) for rank in range(len(self._words))))

    def _word(self) -> str:
        syllables = self.dice.choices((1, 2, 3, 4), (4, 5, 3, 1))[0]
        one = lambda: self.dice.choice(_ONSETS) + self.dice.choice(_VOWELS)  # noqa: E731
        return "".join(one() for _ in range(syllables)) + self.dice.choice(_ENDS)

    def words(self, count: int) -> list[str]:
        return self.dice.choices(self._words, cum_weights=self._weights, k=count)

    def text(self, length: int) -> str:
        """Sentences and numbers of about this many characters."""
        words = self.words(length // 5 + 2)
        for at in range(11, len(words), 13):
            words[at] += self.dice.choice((".", ",", ".\n", "; so", f" {self.dice.randrange(10_000)}"))
        return " ".join(words)[:length]


def copied_text(text: str) -> str:
    """Another object with the same text, as datasets gives each repeated row its own."""
    return (text + " ")[:-1]


def make(rollouts: int, turns: int, length: int, *, images: bool = False, seed: int = 1) -> Batch:
    """A batch of `rollouts`, each with `turns` answers of the model; every message has about `length` characters."""
    writer = Writer(seed)
    system = writer.text(min(length, 2_000))
    batch = Batch([], [], [], [], [], [], [], [])
    if images:
        batch.images = []
    for group in range(-(-rollouts // GROUP)):
        question, answer = writer.text(length), str(writer.dice.randrange(1000))
        picture = _picture(group) if images else None
        batch.distinct_images += images
        for _ in range(min(GROUP, rollouts - group * GROUP)):
            prompt = _prompt(batch, copied_text(system), copied_text(question), picture)
            _add(
                batch,
                prompt,
                [m for _ in range(turns - 1) for m in _turn(writer, length)],
                writer.text(length),
                answer,
            )
    _score(batch, writer.dice)
    batch.text_bytes = sum(_text_bytes(m) for rows in (batch.prompts, batch.completions) for row in rows for m in row)
    return batch


def _prompt(batch: Batch, system: Any, question: Any, picture: Any) -> list[dict[str, Any]]:
    """Plain texts, or content blocks in every message, as TRL prepares prompts that have images."""
    if picture is not None:
        block = {"type": "image", "image": picture.copy()}
        system, question = [{"type": "text", "text": system}], [block, {"type": "text", "text": question}]
        assert batch.images is not None
        batch.images.append([block["image"]])
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def _add(batch: Batch, prompt: list[Any], turns: list[dict[str, Any]], last: str, answer: str) -> None:
    completion = [*turns, {"role": "assistant", "content": last}]
    tokens = sum(len(message["content"]) for message in completion) // 4
    batch.inputs.append({"prompt": prompt, "answer": answer, "difficulty": len(batch.inputs) / 7})
    batch.prompts.append(prompt)
    batch.completions.append(completion)
    batch.ids.append([7] * tokens)
    batch.masks.append([1] * tokens)
    batch.prompt_ids.append([7] * (tokens // 4))


def _turn(writer: Writer, length: int) -> list[dict[str, Any]]:
    arguments = {"query": " ".join(writer.words(6)), "limit": writer.dice.randrange(1, 20)}
    call = {"type": "function", "function": {"name": "search", "arguments": arguments}}
    return [
        {"role": "assistant", "content": writer.text(length), "tool_calls": [call]},
        {"role": "tool", "name": "search", "content": writer.text(length)},
    ]


def _score(batch: Batch, dice: random.Random) -> None:
    batch.rewards = [[float(dice.random() < 0.4), round(dice.random(), 3)] for _ in batch.prompts]
    totals = [sum(row) for row in batch.rewards]
    batch.advantages = [total - sum(totals) / len(totals) for total in totals]


def _picture(number: int) -> Any:
    """A screenshot-like picture: flat areas, edges and a little noise, 512 pixels wide."""
    from PIL import Image, ImageDraw

    dice = random.Random(number)
    image = Image.effect_noise((512, 384), 12).convert("RGB")
    draw = ImageDraw.Draw(image)
    for _ in range(30):
        x, y = dice.randrange(512), dice.randrange(384)
        color = tuple(dice.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + dice.randrange(200), y + dice.randrange(60)), fill=color)
    draw.text((8, 8), f"page {number}", fill="black")
    return image


def _text_bytes(message: dict[str, Any]) -> int:
    content = message["content"]
    return len(content) if isinstance(content, str) else sum(len(block.get("text", "")) for block in content)
