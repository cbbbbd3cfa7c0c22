"""Every text of the page, once: siblings share their prompt, and a run its system message.

When all of them together are too much for one file, the longest are cut, and only as far as they have to be.
"""

from __future__ import annotations

from typing import Any

from rollout_plugins.show.text import clean, readable, shorten

#: Characters of one text, and of all, before gzip makes a fifth or less of them.
LONGEST, MOST = 1_000_000, 24_000_000
SHORT = 200


class Texts:
    """A pool of texts; the page names them by number."""

    def __init__(self, *, longest: int = LONGEST, most: int = MOST) -> None:
        self._longest = longest
        self._most = most
        self._numbers: dict[str, int] = {}
        self.size = 0
        """Characters so far."""

    @property
    def is_full(self) -> bool:
        """More would only cut what is there already ever shorter."""
        return self.size > 4 * self._most

    def add(self, value: Any) -> int:
        """The number of a text that is shown, control and bidirectional marks written out."""
        text = clean(shorten(readable(value), self._longest))
        number = self._numbers.setdefault(text, len(self._numbers))
        if number == len(self._numbers) - 1:
            self.size += len(text)
        return number

    def scalar(self, value: Any) -> Any:
        """A number or a short text as it is; else the number of a text. Spelled out where JSON has no word for it."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) < 2**53:
            return int(value)
        if isinstance(value, float):
            return float(value) if value - value == 0 else str(float(value))
        if isinstance(value, str) and len(value) <= SHORT:
            return clean(value)
        return {"text": self.add(value)}

    def all(self) -> tuple[list[str], int]:
        """The texts by number, and how many of them had to be cut to fit."""
        length = _fitting(list(map(len, self._numbers)), self._most)
        cut = [shorten(text, length) for text in self._numbers]
        return cut, sum(len(text) > length for text in self._numbers)


def _fitting(lengths: list[int], most: int) -> int:
    """The length to which the longest must be cut so that all of them together are at most `most`."""
    left, count = most, len(lengths)
    for length in sorted(lengths):
        if length * count > left:
            return left // count
        left -= length
        count -= 1
    return max(lengths, default=0)
