"""Tools for scripted agents, with every kind of result and failure."""

import asyncio


def multiply(a: int, b: int) -> int:
    """
    Multiply.

    Args:
        a: first
        b: second
    """
    return a * b


def search(query: str, limit: int = 3) -> list:
    """
    Search.

    Args:
        query: text
        limit: most results
    """
    return [{"type": "text", "text": f"result for {query}"}]


def now() -> str:
    """
    Current time.
    """
    return "12:00"


def lookup(items: list) -> str:
    """
    Look things up.

    Args:
        items: a list
    """
    return "ok"


def numbers() -> list:
    """
    Some numbers.
    """
    return [1, 2, 3]


def broken(x: int) -> int:
    """
    Always fails.

    Args:
        x: number
    """
    raise RuntimeError("backend \x1b[31mdown\x1b[0m <script>alert(1)</script>")


async def slow(x: int) -> int:
    """
    Answers later.

    Args:
        x: number
    """
    await asyncio.sleep(0.02)
    return x + 1


async def slow_broken(x: int) -> int:
    """
    Fails later.

    Args:
        x: number
    """
    await asyncio.sleep(0.01)
    raise ValueError("late")


def sort(items: list, options: dict) -> list:
    """
    Sorts in place, and answers with what it goes on using.

    Args:
        items: what to sort
        options: how
    """
    items.sort()
    options["done"] = True
    PAGE.append({"type": "text", "text": str(items)})
    return PAGE


async def sort_later(items: list, options: dict) -> list:
    """
    Sorts in place, later.

    Args:
        items: what to sort
        options: how
    """
    await asyncio.sleep(0)
    return sort(items, options)


PAGE: list = []


class Counted:
    """An environment that counts, and whose count is its reward."""

    def reset(self, **kwargs):
        self.value = 0

    def increment(self, by: int) -> int:
        """
        Add to the counter.

        Args:
            by: how much
        """
        self.value += by
        return self.value

    def get_reward(self):
        return float(self.value)
