"""Search in the text of rollouts: whatever is stored of one, and whatever a viewer prints of it, in any case.

Upper and lower case are the same where `str.casefold` says so. DuckDB's `lower` differs from Python's (Σ at the end of
a word, İ, ß), so the text becomes a regular expression, which DuckDB folds by Unicode's simple rules; the characters
that fold to several, such as ß to ss, are alternatives in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.content.tool_calls import ANSWERING, FAILURES, failure_text
from rollout_plugins.reading.sql_pieces import literal

#: Where the characters are that fold to several.
_FOLDING = (range(0xDF, 0x2000), range(0xFB00, 0xFB18))
#: Longer patterns take long to compile.
_LONG = 500
#: How the store's JSON writes what viewers write between the parts of `name(key=value, …)` and `key: value`.
_PRINTED = {
    ", ": r'(?:, |,\s?(?:\\*")?)',
    ": ": r'(?:: |(?:\\*")?:\s?(?:\\*")?)',
    "=": r'(?:=|\\*":\s?(?:\\*")?)',
    "(": r'(?:\(|"?\{(?:\\*")?|)',
    ")": r"[)}]?",
    '"': r'\\*"',
}
_SAID = ("prompt", "completion")
#: What a viewer writes before an answer.
_ANSWERED = "→ "
#: What a viewer writes for an image.
_IMAGE = """'[IMAGE ' || concat_ws(' ', parse_filename(coalesce(x.uri, x.path)), x.width || 'x' || x.height,
 '(' || x.note || ')') || ']'"""
_TEXT = ("content", "reasoning")
Test = Callable[[str], str]
"""Makes the SQL condition that an expression holds the text."""


def condition(text: str) -> str:
    """Return the SQL condition that a rollout holds the text."""
    raw = _test(text)
    quoted = _test(json.dumps(replace_surrogates(text), ensure_ascii=False)[1:-1])
    printed = _printed_test(text) or quoted
    is_json: Test = quoted if printed is quoted else lambda value: f"({quoted(value)} or {printed(value)})"
    message = [*(raw(f"x.{name}") for name in (*_TEXT, "name")), quoted("x.rest")]
    asked_before = _any("y.tool_calls", _call("x", raw, quoted, printed))
    return " or ".join(
        [
            *(_any(column, message) for column in _SAID),
            _any(
                "tool_calls", [*_call("x", raw, quoted, printed), raw(_joined("x.result", "x.error", _outcome("x")))]
            ),
            _any("prompt", [asked_before], "y"),
            _any("images", [_test(text.removeprefix(_ANSWERED))(_joined(_IMAGE, "x.uri"))]),
            *(_begins(column, text.removeprefix(_ANSWERED)) for column in _SAID if text.startswith(_ANSWERED)),
            is_json(_joined("columns", "extra", "marks")),
            raw(_joined("rendered", "error")),
        ]
    ).join("()")


def _joined(*texts: str) -> str:
    """Several texts as one, for each regular expression takes a moment to make."""
    return f"concat_ws(chr(10), {', '.join(texts)})"


def _call(call: str, raw: Test, quoted: Test, printed: Test) -> list[str]:
    whole = [printed(f"({call}.name || {call}.arguments)")] if printed is not quoted else []
    return [raw(f"{call}.name"), quoted(f"{call}.arguments"), *whole]


def _outcome(call: str) -> str:
    """What a viewer prints of a call that failed: its status, and `→ no such tool: …`."""
    reasons = f"nullif({call}.error, ''), {call}.result, completion[{call}.reply + 1].content"
    cases = " ".join(
        f"when '{status}' then {literal(_before_reason(status))} || coalesce({reasons}, {literal(words)})"
        for status, words in FAILURES.items()
    )
    return f"(case {call}.status {cases} end)"


def _before_reason(status: str) -> str:
    return f"{status.replace('_', ' ')} → {failure_text(status, '.')[:-1]}"


def _begins(column: str, text: str) -> str:
    """A message that answers a call begins with the text."""
    roles = ", ".join(map(literal, sorted(ANSWERING)))
    return _any(column, [f"x.role in ({roles}) and {_matches('^' + _pattern(text[:_LONG]))('x.content')}"])


def _any(column: str, conditions: list[str], element: str = "x") -> str:
    """An element of the list is like that. Looked for in the row itself, not by a join over ids."""
    return f"len(list_filter({column}, lambda {element}: {' or '.join(conditions)})) > 0"


def _test(text: str) -> Test:
    if len(text) > _LONG:
        folded = literal(text)
        return lambda value: f"contains(lower({value}), lower({folded}))"
    return _matches(_pattern(text))


def _printed_test(text: str) -> Test | None:
    """The test for a text as a viewer writes it; None where it is written as it is stored."""
    if len(text) > _LONG or not any(mark in text for mark in _PRINTED):
        return None
    return _matches(_pattern(text, _PRINTED))


def _matches(pattern: str) -> Test:
    return lambda value: f"regexp_matches({value}, {literal(pattern)}, 'i')"


def _pattern(text: str, instead: Mapping[str, str] | None = None) -> str:
    """A regular expression for the text, with alternatives for the characters that fold to several."""
    folded = replace_surrogates(text).casefold()
    pieces, at = [], 0
    while at < len(folded):
        mark = next((mark for mark in instead or () if folded.startswith(mark, at)), None)
        several = next((folds for folds in _several() if folded.startswith(folds, at)), None)
        if mark is not None and instead is not None:
            pieces.append(instead[mark])
        elif several is not None:
            pieces.append(f"(?:{'|'.join((_escaped(several), *_several()[several]))})")
        else:
            pieces.append(_escaped(folded[at]))
        at += len(mark or several or folded[at])
    return "".join(pieces)


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() or not char.isascii() else rf"\x{{{ord(char):x}}}" for char in text)


@cache
def _several() -> dict[str, list[str]]:
    """What characters fold to that fold to several, the longest first, with those characters."""
    found: dict[str, list[str]] = {}
    for code in (code for codes in _FOLDING for code in codes):
        folds = chr(code).casefold()
        if len(folds) > 1:
            found.setdefault(folds, []).append(chr(code))
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))
