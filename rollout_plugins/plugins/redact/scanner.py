"""Find and replace secrets in text with pyarrow's RE2, which takes linear time for every pattern."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rollout_plugins.plugins.redact.secrets import CLOSE, IN_THE_WAY, OPEN, Rule

_REPLACED = re.compile(r"\[REDACTED:[^\]\[]*\]")
_MARKS = re.compile(f"([{OPEN}{CLOSE}])")


class Scanner:
    """Replaces the matches of rules, in many texts at once because that is cheapest."""

    def __init__(self, rules: Iterable[Rule], replacement: Callable[[str, str], str]) -> None:
        self._rules = tuple(rules)
        self._replacement = replacement

    def scan(self, texts: Sequence[str]) -> list[tuple[str, Counter[str]]]:
        """Return each text without secrets, and how many secrets each rule found in it."""
        counts: list[Counter[str]] = [Counter() for _ in texts]
        scanned = self._scan(texts, counts)
        with_invisible = [index for index, text in enumerate(scanned) if _has_invisible(text)]
        if with_invisible:
            texts_again = [scanned[index] for index in with_invisible]
            again = self._scan(texts_again, [counts[index] for index in with_invisible], as_visible=True)
            for index, text in zip(with_invisible, again, strict=True):
                scanned[index] = text
        return list(zip(scanned, counts, strict=True))

    def _scan(self, texts: Sequence[str], counts: Sequence[Counter[str]], *, as_visible: bool = False) -> list[str]:
        """Return the texts without secrets; `as_visible` searches only the visible characters."""
        texts = list(texts)
        views = list(map(_Visible, texts)) if as_visible else None
        searched = texts if views is None else [view.text for view in views]
        array, all_text = _array(searched), "\n".join(searched)
        for rule in _worth_trying(self._rules, all_text):
            matches = self._matches(array, rule)
            for index, spans in matches:
                view = None if views is None else views[index]
                texts[index] = self._replace(texts[index], view, spans, rule, counts[index])
            if matches:
                views = list(map(_Visible, texts)) if as_visible else None
                array = _array(texts if views is None else [view.text for view in views])
        return texts

    def _matches(self, array: Any, rule: Rule) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return the indices of the texts with secrets of the rule, each with the secrets' spans."""
        import pyarrow.compute as pc

        hits = pc.indices_nonzero(pc.match_substring_regex(array, pattern=rule.pattern))
        if not len(hits):
            return []
        marked = pc.replace_substring_regex(
            array.take(hits), pattern=rule.pattern, replacement=rf"\1{OPEN}\2{CLOSE}\3"
        )
        return [(hit, _spans(text)) for hit, text in zip(hits.to_pylist(), marked.to_pylist(), strict=True)]

    def _replace(
        self, text: str, view: _Visible | None, spans: list[tuple[int, int]], rule: Rule, counts: Counter[str]
    ) -> str:
        parts: list[str] = []
        position = 0
        for start, end in spans:
            secret = (text if view is None else view.text)[start:end]
            if secret and not _REPLACED.fullmatch(secret) and (rule.accepts is None or rule.accepts(secret)):
                first, last = (start, end) if view is None else view.origin(start, end)
                parts += [text[position:first], self._replacement(rule.name, secret)]
                position = last
                counts[rule.name] += 1
        return "".join(parts) + text[position:]


# Terminal colours and cursor movements, raw or as repr, JSON and shells write them, and zero-width characters.
_INVISIBLE = re.compile(
    r"(?:\x1b|\\+(?:x1[bB]|u001[bB]|033|e))(?:\[[0-9;:?]*[A-Za-z]|\([A-Z0-9])|\x9b[0-9;:?]*[A-Za-z]"
    "|[\u00ad\u200b-\u200f\u2060\ufeff]"
)
_INVISIBLE_CHARACTERS = "\x1b\x9b\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_ESCAPES = ("\\x1", "\\u001", "\\033", "\\e[")


def _worth_trying(rules: Iterable[Rule], text: str) -> Iterator[Rule]:
    """Yield the rules whose hints occur in the text: searching for hints is far cheaper than for patterns."""
    folded = text.casefold()
    present: dict[tuple[str, ...], bool] = {(): True}
    for rule in rules:
        for hints, where in ((rule.words, folded), (rule.hints, text)):
            if hints not in present:
                present[hints] = any(hint in where for hint in hints)
        if present[rule.words] and present[rule.hints]:
            yield rule


def _has_invisible(text: str) -> bool:
    """Check whether the text contains anything that a person does not see."""
    # Nearly all texts contain nothing of the kind, and this check is far quicker than the pattern.
    if any(character in text for character in _INVISIBLE_CHARACTERS):
        return True
    return "\\" in text and any(escape in text for escape in _ESCAPES) and _INVISIBLE.search(text) is not None


class _Visible:
    """The visible characters of a text, and where they stand in it."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        """Where each visible piece starts in `self.text`."""
        self._shifts = [0]
        """How much further on each piece starts in the original text."""
        pieces, position = [], 0
        for match in _INVISIBLE.finditer(text):
            pieces.append(text[position : match.start()])
            position = match.end()
            self._starts.append(match.start() - self._shifts[-1])
            self._shifts.append(position - self._starts[-1])
        self.text = "".join([*pieces, text[position:]])

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of a part of `self.text` in the original text."""
        return self._at(start), self._at(end - 1) + 1

    def _at(self, position: int) -> int:
        return position + self._shifts[bisect_right(self._starts, position) - 1]


def _array(texts: Sequence[str]) -> Any:
    """Return the texts as an Arrow array, with a placeholder for characters that marks or UTF-8 cannot represent."""
    import pyarrow as pa

    return pa.array([text if text.isascii() else IN_THE_WAY.sub("\ufffd", text) for text in texts], pa.large_string())


def _spans(marked: str) -> list[tuple[int, int]]:
    """Return the spans between the marks, counted in the text without marks."""
    spans: list[tuple[int, int]] = []
    position = start = 0
    for piece in _MARKS.split(marked):
        if piece == OPEN:
            start = position
        elif piece == CLOSE:
            spans.append((start, position))
        else:
            position += len(piece)
    return spans
