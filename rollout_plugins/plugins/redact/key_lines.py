"""Private keys as lists of lines: each line alone is only base64, so a search of single texts cannot find them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_BOUND = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_LONG = re.compile(r"\s*[A-Za-z0-9+/=]{16,}\s*")
_SHORT = re.compile(r"\s*[A-Za-z0-9+/=]+\s*")
_BETWEEN = re.compile(r"\s*(?:[A-Z][A-Za-z\-]{2,20}: .{1,200})?")
_MOST_SHORT = 2
"""Lines at the end of a key that may be short: the last of its base64, and a checksum."""


def key_lines(values: Sequence[Any]) -> dict[int, range]:
    """Return the lines of private keys in a list of lines, each with the range of its key's lines."""
    found: dict[int, range] = {}
    for at in range(len(values)):
        bound = _bound(values, at)
        if bound is not None and at not in found:
            key = _lines_after(values, at) if bound == "BEGIN" else _lines_before(values, at)
            found.update(dict.fromkeys(key, key))
    return found


def _lines_after(values: Sequence[Any], header: int) -> range:
    """Return the lines of the key that begins with this header; none where it is only mentioned."""
    end = header + 1
    while _is(_LONG, values, end) or _is(_BETWEEN, values, end):
        end += 1
    has_body = any(_is(_LONG, values, at) for at in range(header + 1, end))
    after = end
    while after < end + _MOST_SHORT and _is(_SHORT, values, after):
        after += 1
    if _bound(values, after) == "END" and (has_body or after > end):
        return range(header, after + 1)
    if after > end and values[end].rstrip().endswith("="):
        end += 1
    return range(header, end if has_body else header)


def _lines_before(values: Sequence[Any], footer: int) -> range:
    """Return the lines of the key that ends with this footer; its header was on the page before."""
    last = footer
    while last > footer - _MOST_SHORT and not _is(_LONG, values, last - 1) and _is(_SHORT, values, last - 1):
        last -= 1
    first = last
    while _is(_LONG, values, first - 1):
        first -= 1
    return range(first, footer + 1 if first < last else first)


def _bound(values: Sequence[Any], at: int) -> str | None:
    """Return whether a line has the BEGIN or the END of a private key."""
    line = values[at] if at < len(values) else None
    bound = _BOUND.search(line) if type(line) is str and "PRIVATE KEY" in line else None
    return None if bound is None else bound[1]


def _is(kind: re.Pattern[str], values: Sequence[Any], at: int) -> bool:
    return 0 <= at < len(values) and type(values[at]) is str and kind.fullmatch(values[at]) is not None
