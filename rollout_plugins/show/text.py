"""Hostile text and odd numbers, made safe and short for a terminal. Nothing here raises, whatever it is given.

Model output may hold escape sequences that repaint the screen, marks that reverse the reading order and half
characters that no encoder takes. `clean` spells them out; everything that reaches a screen goes through it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from rollout_plugins.content.json_safe import UNSAFE
from rollout_plugins.content.messages import text_of
from rollout_plugins.content.numbers import finite, real

T = TypeVar("T")
MISSING = "—"
HANDFUL = 10
"""A share of fewer things than this says nothing."""
_TAB = "    "


class Clip(NamedTuple):
    """The two ends of a text, and how many characters lay between them."""

    head: str
    tail: str
    hidden: int


def clean(text: str) -> str:
    """The text with everything a terminal would obey or hide written out: ESC is ␛, U+202E is \\u202e."""
    return UNSAFE.sub(_visible, text.replace("\r\n", "\n").replace("\t", _TAB))


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def readable(value: Any) -> str:
    """Any value as raw text, content blocks included; its type's name when it cannot be read."""
    try:
        return text_of(value)
    except Exception:  # a hostile __str__ or __iter__, or a cycle
        return f"<{type(value).__name__}>"


def one_line(value: Any, chars: int = 80) -> str:
    """Any value as one clean line of at most `chars` characters, cut at its end."""
    raw = readable(value)
    text = " ".join(clean(raw[: 2 * chars]).split())
    return text if len(text) <= chars and len(raw) <= 2 * chars else text[: max(chars - 1, 0)] + "…"[:chars]


def clip(text: str, chars: int | None) -> Clip:
    """The first and last `chars` characters, when the text is longer than both; `None` keeps it whole."""
    if chars is None or len(text) <= 2 * chars:
        return Clip(text, "", 0)
    return Clip(text[:chars], text[len(text) - chars :], len(text) - 2 * chars)


def omitted(characters: int) -> str:
    """What stands where text was left out."""
    return f"… {characters:,} {'character' if characters == 1 else 'characters'} …"


def shorten(text: str, chars: int) -> str:
    """The text, or the head and tail of one longer than `chars`, with `… 12,345 characters …` between them."""
    if len(text) <= chars:
        return text
    head, tail, hidden = clip(text, chars // 2)
    return f"{head}{omitted(hidden)}{tail}"


def evenly(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of the values: the first, the last, and evenly between them."""
    if len(values) <= count or count < 2:
        return list(values[:count])
    return [values[place * (len(values) - 1) // (count - 1)] for place in range(count)]


def number(value: Any) -> str:
    """A reward as a person writes it: 0.731, 1.0, 3, nan; a dash where there is none."""
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return f"{value:,}"
    known = real(value)
    if known is None:
        return one_line(value, 12)
    if not math.isfinite(known):
        return str(known)
    if known and not 1e-3 <= abs(known) < 1e6:
        return f"{known:.3g}"
    whole, _, decimals = f"{known:,.3f}".partition(".")
    return f"{whole}.{decimals.rstrip('0') or '0'}"


def share(part: Any, whole: Any) -> str:
    """A share together with what it is of: `69% of 35`; of a handful only the numbers, `2 of 4`."""
    known, total = finite(part), finite(whole)
    if known is None or not total or total < 0:
        return MISSING
    return f"{known / total:.0%} of {total:,.0f}" if total >= HANDFUL else f"{known:,.0f} of {total:,.0f}"


def brief(value: Any, chars: int = 80) -> str:
    """A value among others on one line: a number as `number` has it, everything else cut at its end."""
    return number(value) if isinstance(value, float) else one_line(value, chars)


def signed(value: Any) -> str:
    """An advantage: like `number`, with a plus sign if it is positive."""
    text = number(value)
    known = finite(value)
    return f"+{text}" if known is not None and known > 0 else text


def tone(value: Any) -> str:
    """The style of an advantage or a change."""
    known = finite(value) or 0.0
    return "green" if known > 0 else "red" if known < 0 else ""


def rank(reward: Any) -> float:
    """What a reward is sorted by; one that is missing or not finite is below all others."""
    known = finite(reward)
    return -math.inf if known is None else known


def local_time(seconds: Any) -> str:
    """2026-01-31 18:05:00 where the reader is; empty when it is not a time."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else ""
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def duration(seconds: Any) -> str:
    """12 ms, 1.3 s, 2 min 5 s; empty when it was not observed."""
    known = finite(seconds)
    if known is None or known < 0:
        return ""
    if known < 0.001:
        return "<1 ms"
    if known < 0.9995:
        return f"{known * 1000:.0f} ms"
    if known < 59.95:
        return f"{known:.1f} s"
    minutes, rest = divmod(round(known), 60)
    return f"{minutes:,} min {rest} s"
