"""Replace values by their key in text that shows a dict: as JSON, as a printed dict, or either within other text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_KEY = re.compile(r"""(\\*)(["'])([^"'\\\n]{1,100})\1\2\s{0,4}:\s{0,4}""")
_LONGEST = 10_000
_LITERAL = re.compile(
    rf"""b?(\\*)(["'])(?:(?!\1\2)(?:\\.|[^\\]|\\)){{0,{_LONGEST}}}\1\2|-?[0-9][0-9.eE+\-]*|(?i:true|false)""",
    re.DOTALL,
)
_DECODER = json.JSONDecoder()


def replace_values(text: str, is_named: Callable[[str], bool], token: Callable[[Any], str]) -> tuple[str, int]:
    """Return the text with a quoted token for each value whose key `is_named`, and the number of replaced values."""
    parts: list[str] = []
    position = 0
    for key in _KEY.finditer(text):
        if key.start() < position or not is_named(key[3]):
            continue
        value, end = _parse_value(text, key.end())
        if value is not None:
            quote = key[1] + key[2]
            parts += [text[position : key.end()], quote, token(value), quote]
            position = end
    return "".join(parts) + text[position:], len(parts) // 4


def _parse_value(text: str, start: int) -> tuple[Any, int]:
    """Return the value that starts at `start`, and where it ends; None if there is no value, or it is null."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        literal = _LITERAL.match(text, start)
        return (None, start) if literal is None else (literal[0], literal.end())
