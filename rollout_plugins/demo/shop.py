"""The demo's task, to calculate the price of some items: two tools that can fail, questions, and rewards."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

PRICES = {
    "bags": 14,
    "books": 9,
    "bowls": 6,
    "chairs": 19,
    "cups": 4,
    "hats": 11,
    "lamps": 17,
    "maps": 5,
    "pens": 2,
    "plates": 7,
    "rugs": 18,
    "socks": 3,
}
AMOUNTS = range(2, 13)
WORDINGS = ("How much are {n} {item}?", "What is the price of {n} {item}?", "I buy {n} {item}. What is the total?")
MALFORMED = "<tool_call>"  # stays in a message's text if no valid call follows


def price(item: str) -> int:
    """Look up the price of one piece of an item.

    Args:
        item: Name of the item, in the plural.
    """
    if item not in PRICES:
        raise ValueError(f"no item named '{item}'")
    return PRICES[item]


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a * b


def correct(completions: Sequence[Sequence[dict[str, Any]]], total: Sequence[int], **_: Any) -> list[float]:
    """Return 1 if the last message states the right total, otherwise 0."""
    return [float(_stated(messages[-1]) == right) for messages, right in zip(completions, total, strict=True)]


def tool_use(completions: Sequence[Sequence[dict[str, Any]]], **_: Any) -> list[float | None]:
    """Return the share of tool calls that worked, where malformed ones count as failed; None without any calls."""
    return [_share_that_worked(messages) for messages in completions]


def questions(count: int, seed: int = 0) -> Dataset:
    """Return `count` different shopping questions with their totals; the same ones for the same seed."""
    from datasets import Dataset

    rows = [_question(*parts) for parts in product(sorted(PRICES), AMOUNTS, WORDINGS)]
    random.Random(seed).shuffle(rows)  # noqa: S311 - questions, not secrets
    return Dataset.from_list(rows[:count])


def _question(item: str, amount: int, wording: str) -> dict[str, Any]:
    prompt = [{"role": "user", "content": wording.format(n=amount, item=item)}]
    return {"prompt": prompt, "item": item, "total": amount * PRICES[item]}


def _stated(message: dict[str, Any]) -> int | None:
    if message["role"] != "assistant" or message.get("tool_calls") or MALFORMED in message["content"]:
        return None
    numbers = re.findall(r"\d+", message["content"])
    return int(numbers[-1]) if numbers else None


def _share_that_worked(messages: Sequence[dict[str, Any]]) -> float | None:
    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    malformed = sum(MALFORMED in message["content"] for message in messages)
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    worked = sum(not reply.startswith("{'error'") for reply in replies)
    return worked / (calls + malformed) if calls + malformed else None
