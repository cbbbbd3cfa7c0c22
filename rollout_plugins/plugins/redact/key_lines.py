"""Find private keys in lists of lines, which a search of each line would miss because a line is only base64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_BOUND = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_LONG = re.compile(r"\s*[A-Za-z0-9+/=]{16,}\s*")
_SHORT = re.compile(r"\s*[A-Za-z0-9+/=]+\s*")
_BETWEEN = re.compile(r"\s*(?:[A-Z][A-Za-z\-]{2,20}: .{1,200})?")
_MOST_SHORT = 2
"""How many lines at the end of a key may be short: the last one of its base64, and a checksum."""


def find_key_lines(values: Sequence[Any]) -> dict[int, range]:
    """Return the index of each line of a private key, with the range of all lines of that key."""
    ranges: dict[int, range] = {}
    for index in range(len(values)):
        bound = _marker_kind(values, index)
        if bound is not None and index not in ranges:
            key = _lines_after(values, index) if bound == "BEGIN" else _lines_before(values, index)
            ranges.update(dict.fromkeys(key, key))
    return ranges


def _lines_after(values: Sequence[Any], header: int) -> range:
    """Return the lines of the key that starts with this header; an empty range if the header is only mentioned."""
    end = header + 1
    while _line_matches(_LONG, values, end) or _line_matches(_BETWEEN, values, end):
        end += 1
    has_body = any(_line_matches(_LONG, values, index) for index in range(header + 1, end))
    after = end
    while after < end + _MOST_SHORT and _line_matches(_SHORT, values, after):
        after += 1
    if _marker_kind(values, after) == "END" and (has_body or after > end):
        return range(header, after + 1)
    if after > end and values[end].rstrip().endswith("="):
        end += 1
    return range(header, end if has_body else header)


def _lines_before(values: Sequence[Any], footer: int) -> range:
    """Return the lines of the key that ends with this footer, without a header, as on the last page of a key file."""
    last = footer
    while (
        last > footer - _MOST_SHORT
        and not _line_matches(_LONG, values, last - 1)
        and _line_matches(_SHORT, values, last - 1)
    ):
        last -= 1
    first = last
    while _line_matches(_LONG, values, first - 1):
        first -= 1
    return range(first, footer + 1 if first < last else first)


def _marker_kind(values: Sequence[Any], index: int) -> str | None:
    """Return "BEGIN" or "END" if the line has such a marker of a private key, otherwise None."""
    line = values[index] if index < len(values) else None
    bound = _BOUND.search(line) if type(line) is str and "PRIVATE KEY" in line else None
    return None if bound is None else bound[1]


def _line_matches(pattern: re.Pattern[str], values: Sequence[Any], index: int) -> bool:
    return 0 <= index < len(values) and type(values[index]) is str and pattern.fullmatch(values[index]) is not None
