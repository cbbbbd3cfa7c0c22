"""Search in everything stored of a rollout and everything that a viewer prints of it, ignoring case.

Case is ignored as in `str.casefold`. DuckDB's `lower` differs from Python's (final Σ, İ, ß), so a search text becomes
a regular expression, which DuckDB folds by Unicode's simple rules. Characters that fold to several, such as ß to ss,
become alternatives in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache

from rollout_plugins.content.exact_json import replace_surrogates
from rollout_plugins.content.tool_calls import ANSWERING, FAILURES, failure_text
from rollout_plugins.reading.sql_pieces import literal

#: The ranges of characters that fold to several characters.
_FOLDING = (range(0xDF, 0x2000), range(0xFB00, 0xFB18))
#: The longest text that becomes a regular expression, because compiling long ones is slow.
_MAX_PATTERN = 500
#: Patterns for the stored JSON of text that viewers print as `name(key=value, …)` and `key: value`.
_PRINTED = {
    ", ": r'(?:, |,\s?(?:\\*")?)',
    ": ": r'(?:: |(?:\\*")?:\s?(?:\\*")?)',
    "=": r'(?:=|\\*":\s?(?:\\*")?)',
    "(": r'(?:\(|"?\{(?:\\*")?|)',
    ")": r"[)}]?",
    '"': r'\\*"',
}
_MESSAGE_COLUMNS = ("prompt", "completion")
#: The text that viewers print before the result of a tool call.
_RESULT_MARK = "→ "
#: SQL for the text that viewers print for an image.
_IMAGE = """'[IMAGE ' || concat_ws(' ', parse_filename(coalesce(x.uri, x.path)), x.width || 'x' || x.height,
 '(' || x.note || ')') || ']'"""
_TEXT = ("content", "reasoning")
Test = Callable[[str], str]
"""Returns the SQL condition that an expression contains the search text."""


def condition(text: str) -> str:
    """Return the SQL condition that a rollout contains the text."""
    raw = _test(text)
    quoted = _test(json.dumps(replace_surrogates(text), ensure_ascii=False)[1:-1])
    printed = _printed_test(text) or quoted
    is_json: Test = quoted if printed is quoted else lambda value: f"({quoted(value)} or {printed(value)})"
    message = [*(raw(f"x.{name}") for name in (*_TEXT, "name")), quoted("x.rest")]
    answered_call = _any_element("y.tool_calls", _call_conditions("x", raw, quoted, printed))
    return " or ".join(
        [
            *(_any_element(column, message) for column in _MESSAGE_COLUMNS),
            _any_element(
                "tool_calls",
                [
                    *_call_conditions("x", raw, quoted, printed),
                    raw(_concatenate("x.result", "x.error", _failure_text("x"))),
                ],
            ),
            _any_element("prompt", [answered_call], "y"),
            _any_element("images", [_test(text.removeprefix(_RESULT_MARK))(_concatenate(_IMAGE, "x.uri"))]),
            *(
                _result_starts_with(column, text.removeprefix(_RESULT_MARK))
                for column in _MESSAGE_COLUMNS
                if text.startswith(_RESULT_MARK)
            ),
            is_json(_concatenate("columns", "extra", "marks")),
            raw(_concatenate("rendered", "error")),
        ]
    ).join("()")


def _concatenate(*texts: str) -> str:
    """Return SQL that concatenates expressions, because each regular expression takes time to compile."""
    return f"concat_ws(chr(10), {', '.join(texts)})"


def _call_conditions(call: str, raw: Test, quoted: Test, printed: Test) -> list[str]:
    printed_call = [printed(f"({call}.name || {call}.arguments)")] if printed is not quoted else []
    return [raw(f"{call}.name"), quoted(f"{call}.arguments"), *printed_call]


def _failure_text(call: str) -> str:
    """Return SQL for what a viewer prints of a failed call: its status, or `→ no such tool: …`."""
    reasons = f"nullif({call}.error, ''), {call}.result, completion[{call}.reply + 1].content"
    cases = " ".join(
        f"when '{status}' then {literal(_before_reason(status))} || coalesce({reasons}, {literal(words)})"
        for status, words in FAILURES.items()
    )
    return f"(case {call}.status {cases} end)"


def _before_reason(status: str) -> str:
    return f"{status.replace('_', ' ')} → {failure_text(status, '.')[:-1]}"


def _result_starts_with(column: str, text: str) -> str:
    """Return the condition that a message with the result of a call starts with the text."""
    roles = ", ".join(map(literal, sorted(ANSWERING)))
    return _any_element(
        column, [f"x.role in ({roles}) and {_matches('^' + _pattern(text[:_MAX_PATTERN]))('x.content')}"]
    )


def _any_element(column: str, conditions: list[str], element: str = "x") -> str:
    """Return the condition that a list has an element that fulfils one of the conditions.

    The list is searched within the row, because a join over ids would be slower.
    """
    return f"len(list_filter({column}, lambda {element}: {' or '.join(conditions)})) > 0"


def _test(text: str) -> Test:
    if len(text) > _MAX_PATTERN:
        folded = literal(text)
        return lambda value: f"contains(lower({value}), lower({folded}))"
    return _matches(_pattern(text))


def _printed_test(text: str) -> Test | None:
    """Return the test for a text as viewers print it, or None if it is stored in the same form."""
    if len(text) > _MAX_PATTERN or not any(mark in text for mark in _PRINTED):
        return None
    return _matches(_pattern(text, _PRINTED))


def _matches(pattern: str) -> Test:
    return lambda value: f"regexp_matches({value}, {literal(pattern)}, 'i')"


def _pattern(text: str, replacements: Mapping[str, str] | None = None) -> str:
    """Return a regular expression for the text, with alternatives for characters that fold to several."""
    folded = replace_surrogates(text).casefold()
    pieces, at = [], 0
    while at < len(folded):
        mark = next((mark for mark in replacements or () if folded.startswith(mark, at)), None)
        expanded = next((folds for folds in _expanding_characters() if folded.startswith(folds, at)), None)
        if mark is not None and replacements is not None:
            pieces.append(replacements[mark])
        elif expanded is not None:
            pieces.append(f"(?:{'|'.join((_escaped(expanded), *_expanding_characters()[expanded]))})")
        else:
            pieces.append(_escaped(folded[at]))
        at += len(mark or expanded or folded[at])
    return "".join(pieces)


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() or not char.isascii() else rf"\x{{{ord(char):x}}}" for char in text)


@cache
def _expanding_characters() -> dict[str, list[str]]:
    """Return the characters that fold to several, by what they fold to, longest first."""
    by_fold: dict[str, list[str]] = {}
    for code in (code for codes in _FOLDING for code in codes):
        folds = chr(code).casefold()
        if len(folds) > 1:
            by_fold.setdefault(folds, []).append(chr(code))
    return dict(sorted(by_fold.items(), key=lambda item: -len(item[0])))
