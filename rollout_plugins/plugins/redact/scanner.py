"""Find and replace secrets in text, in time linear in its length whatever the pattern: RE2, as pyarrow has it."""

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
    """Replaces what rules find. Many texts at once, for that is what costs least."""

    def __init__(self, rules: Iterable[Rule], replacement: Callable[[str, str], str]) -> None:
        self._rules = tuple(rules)
        self._replacement = replacement

    def scan(self, texts: Sequence[str]) -> list[tuple[str, Counter[str]]]:
        """Return each text without secrets, and how many of which rule were in it."""
        counts: list[Counter[str]] = [Counter() for _ in texts]
        scanned = self._scan(texts, counts)
        places = [at for at, text in enumerate(scanned) if _has_unseen(text)]
        if places:
            again = self._scan([scanned[at] for at in places], [counts[at] for at in places], is_as_seen=True)
            for at, text in zip(places, again, strict=True):
                scanned[at] = text
        return list(zip(scanned, counts, strict=True))

    def _scan(self, texts: Sequence[str], counts: Sequence[Counter[str]], *, is_as_seen: bool = False) -> list[str]:
        """Return the texts without secrets; `is_as_seen` searches what a person sees of them."""
        texts = list(texts)
        views = list(map(_Seen, texts)) if is_as_seen else None
        searched = texts if views is None else [view.text for view in views]
        array, whole = _array(searched), "\n".join(searched)
        for rule in _worth_trying(self._rules, whole):
            found = self._found(array, rule)
            for number, spans in found:
                view = None if views is None else views[number]
                texts[number] = self._cut(texts[number], view, spans, rule, counts[number])
            if found:
                views = list(map(_Seen, texts)) if is_as_seen else None
                array = _array(texts if views is None else [view.text for view in views])
        return texts

    def _found(self, array: Any, rule: Rule) -> list[tuple[int, list[tuple[int, int]]]]:
        """Which texts hold secrets of the rule, and where."""
        import pyarrow.compute as pc

        hits = pc.indices_nonzero(pc.match_substring_regex(array, pattern=rule.pattern))
        if not len(hits):
            return []
        marked = pc.replace_substring_regex(
            array.take(hits), pattern=rule.pattern, replacement=rf"\1{OPEN}\2{CLOSE}\3"
        )
        return [(hit, _spans(text)) for hit, text in zip(hits.to_pylist(), marked.to_pylist(), strict=True)]

    def _cut(
        self, text: str, view: _Seen | None, spans: list[tuple[int, int]], rule: Rule, counts: Counter[str]
    ) -> str:
        parts: list[str] = []
        done = 0
        for start, end in spans:
            secret = (text if view is None else view.text)[start:end]
            if secret and not _REPLACED.fullmatch(secret) and (rule.accepts is None or rule.accepts(secret)):
                first, last = (start, end) if view is None else view.origin(start, end)
                parts += [text[done:first], self._replacement(rule.name, secret)]
                done = last
                counts[rule.name] += 1
        return "".join(parts) + text[done:]


# Terminal colours and cursor movements, as they are or as repr, JSON and shells write them; zero-width characters.
_UNSEEN = re.compile(
    r"(?:\x1b|\\+(?:x1[bB]|u001[bB]|033|e))(?:\[[0-9;:?]*[A-Za-z]|\([A-Z0-9])|\x9b[0-9;:?]*[A-Za-z]"
    "|[\u00ad\u200b-\u200f\u2060\ufeff]"
)
_UNSEEN_CHARACTERS = "\x1b\x9b\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_ESCAPES = ("\\x1", "\\u001", "\\033", "\\e[")


def _worth_trying(rules: Iterable[Rule], text: str) -> Iterator[Rule]:
    """Yield the rules of which the text has a hint: looking for hints is far cheaper than for patterns."""
    folded = text.casefold()
    present: dict[tuple[str, ...], bool] = {(): True}
    for rule in rules:
        for hints, where in ((rule.words, folded), (rule.hints, text)):
            if hints not in present:
                present[hints] = any(hint in where for hint in hints)
        if present[rule.words] and present[rule.hints]:
            yield rule


def _has_unseen(text: str) -> bool:
    """Return whether there is something in the text that a person does not see."""
    # Far quicker than the pattern where, as in nearly all texts, there is nothing.
    if any(character in text for character in _UNSEEN_CHARACTERS):
        return True
    return "\\" in text and any(escape in text for escape in _ESCAPES) and _UNSEEN.search(text) is not None


class _Seen:
    """A text without what a person does not see."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        """Where each piece that is seen begins in `self.text`."""
        self._shifts = [0]
        """How much further on it begins in the whole text."""
        pieces, done = [], 0
        for unseen in _UNSEEN.finditer(text):
            pieces.append(text[done : unseen.start()])
            done = unseen.end()
            self._starts.append(unseen.start() - self._shifts[-1])
            self._shifts.append(done - self._starts[-1])
        self.text = "".join([*pieces, text[done:]])

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of `self.text` stands in the whole text."""
        return self._at(start), self._at(end - 1) + 1

    def _at(self, position: int) -> int:
        return position + self._shifts[bisect_right(self._starts, position) - 1]


def _array(texts: Sequence[str]) -> Any:
    """For the scan alone: what the marks or the encoding could not bear is replaced, one character for one."""
    import pyarrow as pa

    return pa.array([text if text.isascii() else IN_THE_WAY.sub("\ufffd", text) for text in texts], pa.large_string())


def _spans(marked: str) -> list[tuple[int, int]]:
    """Where the marks were put, counted in the text without them."""
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
