"""Finding secrets in text, in time linear in its length whatever the pattern: RE2, as pyarrow has it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rollout_plugins.content.environment import secrets

_OPEN, _CLOSE = "\uf8f0", "\uf8f1"
_IN_THE_WAY = re.compile(f"[{_OPEN}{_CLOSE}\ud800-\udfff]")
_REPLACED = re.compile(r"\[REDACTED:[^\]\[]*\]")
_MARKS = re.compile(f"([{_OPEN}{_CLOSE}])")

# A token starts the text, follows what cannot be part of it, or an escape inside JSON text ("…\nsk-…").
_START = r"""^|[^A-Za-z0-9_\-]|\\[nrtbf]|\\u[0-9a-fA-F]{4}"""
_WORD = r"[A-Za-z0-9_\-]"
_ASSIGNED = r"""\\?["']?\s{0,4}[:=]\s{0,4}\\?["']?"""


NAMED = (
    "password",
    "passwd",
    "api_key",
    "apikey",
    "secret",
    "secret_key",
    "access_token",
    "refresh_token",
    "auth_token",
    "client_secret",
    "private_key",
    "secret_access_key",
    "authorization",
    "x_api_key",
)
# Inside text: `"password": "…"` of JSON, `'password': '…'` of a dict that was printed, and both inside JSON text.
_NAMES = "|".join(name.replace("_", r"[_\-]?") for name in NAMED)
_KEY = rf"""(?i:\\*["'](?:{_NAMES})\\*["']\s{{0,4}}:\s{{0,4}}b?)"""
_WORDS = tuple(dict.fromkeys(name.replace("_", joint) for name in NAMED for joint in ("_", "-", "")))
_QUOTED = [
    (opening, rf"(?:[^{quote}\\]|{escaped})+")
    for quote in ('"', "'")
    for opening, escaped in (
        (quote, r"\\."),
        (rf"\\{quote}", rf"\\\\(?:[^{quote}\\]|\\\\|\\{quote})"),
    )
]


class Rule(NamedTuple):
    """What stands before a secret, the secret, what stands after it. Only the secret is replaced."""

    name: str
    secret: str
    before: str = _START
    after: str = ""
    hints: tuple[str, ...] = ()
    """Without any of these in a text there is nothing to find; looking for them is far cheaper."""
    words: tuple[str, ...] = ()
    """The same, in lower case, where the secret's name may have any."""
    accepts: Callable[[str], bool] | None = None

    @property
    def pattern(self) -> str:
        return f"({self.before})({self.secret})({self.after})"


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is_long_or_has_digit(text: str) -> bool:
    return len(text) >= 20 or _has_digit(text)


RULES = (
    Rule(
        "private_key",
        r"(?s:-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
        r".*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z))",
        before="",
        hints=("PRIVATE KEY",),
    ),
    Rule(
        "url_password",
        r"""[^\s/"'<>,]+""",
        before=r"""\b[A-Za-z][A-Za-z0-9+.\-]*://[^\s/:@"']*:""",
        after="@",
        hints=("://",),
    ),
    Rule("openai", rf"sk-{_WORD}{{20,}}", hints=("sk-",)),
    Rule("huggingface", r"(?:hf|api_org)_[A-Za-z0-9]{30,}", hints=("hf_", "api_org_")),
    Rule("github", r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}", hints=("gh", "github_pat_")),
    Rule("gitlab", rf"gl(?:pat|ptt|dt|rt)-{_WORD}{{20,}}", hints=("gl",)),
    Rule("slack", r"xox[abeprs]-[A-Za-z0-9\-]{10,}|xapp-[A-Za-z0-9\-]{10,}", hints=("xox", "xapp-")),
    Rule("aws", r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}", after=r"\b", hints=("AKIA", "ASIA", "ABIA", "ACCA")),
    Rule(
        "google",
        rf"AIza{_WORD}{{35}}|ya29\.{_WORD}{{20,}}|GOCSPX-{_WORD}{{20,}}",
        hints=("AIza", "ya29.", "GOCSPX-"),
    ),
    Rule(
        "stripe", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9]{16,}", hints=("_live_", "_test_", "whsec_")
    ),
    Rule("package_index", rf"npm_[A-Za-z0-9]{{36}}|pypi-{_WORD}{{50,}}", hints=("npm_", "pypi-")),
    Rule(
        "vendor",
        rf"nvapi-{_WORD}{{40,}}|gsk_[A-Za-z0-9]{{40,}}|xai-[A-Za-z0-9]{{40,}}|r8_[A-Za-z0-9]{{30,}}|"
        rf"wandb_v1_{_WORD}{{20,}}|tgp_v1_{_WORD}{{20,}}|dop_v1_[a-f0-9]{{64}}|SG\.{_WORD}{{16,}}\.{_WORD}{{16,}}",
        hints=("nvapi-", "gsk_", "xai-", "r8_", "wandb_v1_", "tgp_v1_", "dop_v1_", "SG."),
    ),
    Rule("jwt", rf"eyJ{_WORD}{{10,}}\.eyJ{_WORD}{{10,}}\.{_WORD}*", hints=("eyJ",)),
    Rule(
        "bearer",
        r"[A-Za-z0-9._~+/=\-]{8,}",
        before=rf"(?i:\bauthorization{_ASSIGNED}(?:[a-z]+\s{{1,4}})?|\bbearer\s{{1,8}})",
        words=("authorization", "bearer"),
        accepts=_is_long_or_has_digit,
    ),
    Rule(
        "assigned",
        r"""[^\s"',;\\()<>{}\[\]]{6,}""",
        before=r"(?i:(?:api[_\-]?key|secret[_\-]?key|secret[_\-]?access[_\-]?key|access[_\-]?token|auth[_\-]?token"
        rf"|client[_\-]?secret|private[_\-]?key|password|passwd){_ASSIGNED})",
        words=_WORDS,
        accepts=_has_digit,
    ),
    *(Rule("named", rf"(?s:{value})", before=f"{_KEY}{opening}", words=_WORDS) for opening, value in _QUOTED),
)


ENVIRONMENT = "environment"


def environment() -> list[Rule]:
    """The secrets of the environment, which programs print."""
    told = filter(_is_secret, secrets())
    written = tuple(dict.fromkeys(form for value in told for form in (value, json.dumps(value)[1:-1])))
    return [Rule(ENVIRONMENT, "|".join(map(_literal, written)), before="", hints=written)] if written else []


def _is_secret(value: str) -> bool:
    """Not a path to one, nor a word that texts have anyway."""
    is_told = not _IN_THE_WAY.search(value) and not value.startswith(("/", "~", "./"))
    return is_told and _is_long_or_has_digit(value)


def _literal(value: str) -> str:
    """As RE2 takes it."""
    parts = (rf"\Q{part}\E" for part in value.split(r"\E"))
    return r"\\E".join(parts)


def fault_of(pattern: str) -> str | None:
    """Why RE2 cannot take the pattern, if so."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        empty = pc.match_substring_regex(pa.array([""]), pattern=f"(?:{pattern})")[0].as_py()
    except (pa.ArrowInvalid, UnicodeError) as error:
        return (
            f"{str(error).removeprefix('Invalid regular expression: ')} (patterns are RE2's, which has no lookaround)"
        )
    return "it matches the empty text" if empty else None


class Scanner:
    """Replaces what rules find. Many texts at once, for that is what costs least."""

    def __init__(self, rules: Iterable[Rule], replacement: Callable[[str, str], str]) -> None:
        self._rules = tuple(rules)
        self._replacement = replacement

    def scan(self, texts: Sequence[str]) -> list[tuple[str, Counter[str]]]:
        """Each text without secrets, and how many of which rule were in it."""
        texts = list(texts)
        counts: list[Counter[str]] = [Counter() for _ in texts]
        array = _array(texts)
        whole = "\n".join(texts)
        folded = whole.casefold()
        present: dict[tuple[str, ...], bool] = {}
        for rule in self._rules:
            if rule.words not in present:
                present[rule.words] = not rule.words or any(word in folded for word in rule.words)
            if not present[rule.words] or (rule.hints and not any(hint in whole for hint in rule.hints)):
                continue
            found = self._found(array, rule)
            for number, spans in found:
                texts[number] = self._cut(texts[number], spans, rule, counts[number])
            if found:
                array = _array(texts)
        return list(zip(texts, counts, strict=True))

    def _found(self, array: Any, rule: Rule) -> list[tuple[int, list[tuple[int, int]]]]:
        """Which texts hold secrets of the rule, and where."""
        import pyarrow.compute as pc

        hits = pc.indices_nonzero(pc.match_substring_regex(array, pattern=rule.pattern))
        if not len(hits):
            return []
        marked = pc.replace_substring_regex(
            array.take(hits), pattern=rule.pattern, replacement=rf"\1{_OPEN}\2{_CLOSE}\3"
        )
        return [(hit, _spans(text)) for hit, text in zip(hits.to_pylist(), marked.to_pylist(), strict=True)]

    def _cut(self, text: str, spans: list[tuple[int, int]], rule: Rule, counts: Counter[str]) -> str:
        parts: list[str] = []
        done = 0
        for start, end in spans:
            secret = text[start:end]
            if secret and not _REPLACED.fullmatch(secret) and (rule.accepts is None or rule.accepts(secret)):
                parts += [text[done:start], self._replacement(rule.name, secret)]
                done = end
                counts[rule.name] += 1
        return "".join(parts) + text[done:]


def _array(texts: Sequence[str]) -> Any:
    """For the scan alone: what the marks or the encoding could not bear is replaced, one character for one."""
    import pyarrow as pa

    return pa.array([text if text.isascii() else _IN_THE_WAY.sub("\ufffd", text) for text in texts], pa.large_string())


def _spans(marked: str) -> list[tuple[int, int]]:
    """Where the marks were put, counted in the text without them."""
    spans: list[tuple[int, int]] = []
    position = start = 0
    for piece in _MARKS.split(marked):
        if piece == _OPEN:
            start = position
        elif piece == _CLOSE:
            spans.append((start, position))
        else:
            position += len(piece)
    return spans
