"""Make any text and number safe and short for a terminal. Nothing here raises.

Model output may contain escape sequences that repaint the screen, marks that reverse the reading order, and lone
surrogates that no encoder accepts. `clean` spells them out; everything that reaches a screen goes through it.
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
"""A percentage of fewer things than this would say nothing."""
_TAB = "    "


class Clip(NamedTuple):
    """The start and the end of a text, and how many characters are between them."""

    head: str
    tail: str
    hidden: int


def clean(text: str) -> str:
    """Return the text with control and invisible characters spelled out: ESC becomes ␛, U+202E becomes \\u202e."""
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
    """Return any value as text, including content blocks; the name of its type if it cannot be read."""
    try:
        return text_of(value)
    except Exception:  # a __str__ or __iter__ that raises, or a cycle
        return f"<{type(value).__name__}>"


def one_line(value: Any, chars: int = 80) -> str:
    """Return any value as one clean line of at most `chars` characters, cut at its end."""
    raw = readable(value)
    text = " ".join(clean(raw[: 2 * chars]).split())
    return text if len(text) <= chars and len(raw) <= 2 * chars else text[: max(chars - 1, 0)] + "…"[:chars]


def clip(text: str, chars: int | None) -> Clip:
    """Return the first and last `chars` characters of a text that is longer than both; None does not cut."""
    if chars is None or len(text) <= 2 * chars:
        return Clip(text, "", 0)
    return Clip(text[:chars], text[len(text) - chars :], len(text) - 2 * chars)


def omitted(characters: int) -> str:
    """Return the text that replaces omitted characters."""
    return f"… {characters:,} {'character' if characters == 1 else 'characters'} …"


def shorten(text: str, chars: int) -> str:
    """Return the text; if it is longer than `chars`, its start and end with `… 12,345 characters …` between them."""
    if len(text) <= chars:
        return text
    head, tail, hidden = clip(text, chars // 2)
    return f"{head}{omitted(hidden)}{tail}"


def evenly(values: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of the values: the first, the last, and evenly spaced ones between them."""
    if len(values) <= count or count < 2:
        return list(values[:count])
    return [values[place * (len(values) - 1) // (count - 1)] for place in range(count)]


def number(value: Any) -> str:
    """Format a reward as people write it: 0.731, 1.0, 3, nan; a dash for None."""
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return f"{value:,}"
    converted = real(value)
    if converted is None:
        return one_line(value, 12)
    if not math.isfinite(converted):
        return str(converted)
    if converted and not 1e-3 <= abs(converted) < 1e6:
        return f"{converted:.3g}"
    integer, _, decimals = f"{converted:,.3f}".partition(".")
    return f"{integer}.{decimals.rstrip('0') or '0'}"


def share(part: Any, total_value: Any) -> str:
    """Format a share with its total: `69% of 35`; with a small total only the counts, `2 of 4`."""
    counted, total = finite(part), finite(total_value)
    if counted is None or not total or total < 0:
        return MISSING
    return f"{counted / total:.0%} of {total:,.0f}" if total >= HANDFUL else f"{counted:,.0f} of {total:,.0f}"


def brief(value: Any, chars: int = 80) -> str:
    """Format one of several values on a line: a float like `number`, anything else cut at its end."""
    return number(value) if isinstance(value, float) else one_line(value, chars)


def signed(value: Any) -> str:
    """Format an advantage like `number`, with a plus sign if it is positive."""
    text = number(value)
    amount = finite(value)
    return f"+{text}" if amount is not None and amount > 0 else text


def tone(value: Any) -> str:
    """Return the style of an advantage or a change."""
    amount = finite(value) or 0.0
    return "green" if amount > 0 else "red" if amount < 0 else ""


def rank(reward: Any) -> float:
    """Return the sort key of a reward; a missing or non-finite one comes below all others."""
    amount = finite(reward)
    return -math.inf if amount is None else amount


def local_time(seconds: Any) -> str:
    """Return the time as 2026-01-31 18:05:00 in the reader's time zone; "" for anything else."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else ""
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def duration(seconds: Any) -> str:
    """Format a duration as 12 ms, 1.3 s or 2 min 5 s; "" if it is unknown."""
    elapsed = finite(seconds)
    if elapsed is None or elapsed < 0:
        return ""
    if elapsed < 0.001:
        return "<1 ms"
    if elapsed < 0.9995:
        return f"{elapsed * 1000:.0f} ms"
    if elapsed < 59.95:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(round(elapsed), 60)
    return f"{minutes:,} min {rest} s"
