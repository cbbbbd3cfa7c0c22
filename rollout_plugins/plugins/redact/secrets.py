"""Define what secrets look like in text: the built-in rules, and the values of secret environment variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from rollout_plugins.system.env_secrets import read_secrets

OPEN, CLOSE = "\uf8f0", "\uf8f1"
"""The characters with which the scanner marks a secret. In its copy of a text that has them already, they are
replaced.
"""
IN_THE_WAY = re.compile(f"[{OPEN}{CLOSE}\ud800-\udfff]")

# A token may follow nothing, a character that cannot be part of it (and then Markdown's `_`, or the `-` of a
# diff), or an escape that ends in a letter or digit: "\n" and "\x1b" as JSON and repr write them, "%3D" in a URL,
# "=3D" in a mail, "[32m" of a terminal colour.
_START = (
    r"(?:^|[^A-Za-z0-9_\-])[_\-]*|\\(?:[abefnrtv0]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[0-7]{3})"
    r"|[%=](?:25)*[0-9A-Fa-f]{2}|\[[0-9;:?]*[A-Za-z]"
)
_WORD = r"[A-Za-z0-9_\-]"
_ASSIGNED = r"""\\?["']?\s{0,4}(?:[:=]|%3[ADad])\s{0,4}\\?["']?"""


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
# In text, the key is quoted as in JSON (`"password": "…"`), in a printed dict (`'password': '…'`), or either of them
# escaped within JSON. It may also only end in the name, as in `"db_password"`.
_NAMES = "|".join(name.replace("_", r"[_\- ]?") for name in NAMED)
_KEY = rf"""(?i:\\*["'](?:[A-Za-z0-9_.\- ]*)(?:{_NAMES})\\*["']\s{{0,4}}:\s{{0,4}}b?)"""
_SPELLINGS = tuple(dict.fromkeys(name.replace("_", joint) for name in NAMED for joint in ("_", "-", " ", "")))
_WORDS = tuple(name for name in _SPELLINGS if not any(part in name for part in _SPELLINGS if part != name))
_QUOTED = [
    (opening, rf"(?:[^{quote}\\]|{escaped})+")
    for quote in ('"', "'")
    for opening, escaped in (
        (quote, r"\\."),
        (rf"\\{quote}", rf"\\\\(?:[^{quote}\\]|\\\\|\\{quote})"),
    )
]


class Rule(NamedTuple):
    """A pattern for a secret, with patterns for the text before and after it. Only the secret is replaced."""

    name: str
    secret: str
    before: str = _START
    after: str = ""
    hints: tuple[str, ...] = ()
    """A text without any of these cannot match. Searching for them is far cheaper than for the pattern."""
    words: tuple[str, ...] = ()
    """The same in lower case, for names that are written in any case."""
    accepts: Callable[[str], bool] | None = None

    @property
    def pattern(self) -> str:
        return f"({self.before})({self.secret})({self.after})"


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is_long_or_has_digit(text: str) -> bool:
    return len(text) >= 20 or _has_digit(text)


def _is_key_material(text: str) -> bool:
    """Check whether a private key without its last line has what the prose after a mere mention does not have."""
    return "-----END" in text or _has_digit(text.rpartition("-----")[2])


_PORT = re.compile(r"\d{1,5}\W|[{$%]|.{0,3}$")


def _is_not_a_port(text: str) -> bool:
    """Check whether the text may be a password, unlike `8080/path` in `http://host:8080/path@x`."""
    return not _PORT.match(text)


# A private key: its lines in base64, however they are joined (escapes, quotes, indentation, line numbers), with a
# header, a footer or both. A header without such lines only mentions a key, and stays.
_LABEL = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
_HEADER, _FOOTER = f"-----BEGIN {_LABEL}", f"-----END {_LABEL}"
_LINE, _SHORT_LINE = r"(?:[A-Za-z0-9+/=]|\\+/){16,}", r"[A-Za-z0-9+/=]+"
_GAP = r"""(?:[\s"'`,;:>|*#.+()\[\]]|\\+[nrt"']|[0-9]{1,6}[\t:|.)\-])*"""
_BREAK = r"(?:\r?\n|(?:\\+r)?\\+n)[ \t>|]*"
_ATTRIBUTE = r"""[A-Z][A-Za-z\-]{2,20}: [^\n\\"']{1,200}"""
_END = rf"(?:{_GAP}{_SHORT_LINE}){{0,2}}{_GAP}{_FOOTER}|{_BREAK}{_SHORT_LINE}\z|{_GAP}[A-Za-z0-9+/]+={{1,2}}"
_PRIVATE_KEYS = (
    rf"{_HEADER}(?:{_GAP}{_ATTRIBUTE})*(?:{_GAP}{_LINE})+(?:{_END})?",
    rf"{_HEADER}(?:{_BREAK}{_SHORT_LINE})+{_BREAK}{_FOOTER}",
    rf"(?:{_LINE}{_GAP})+(?:{_SHORT_LINE}{_GAP}){{0,2}}{_FOOTER}",
)
_SCHEME = r"\b[A-Za-z][A-Za-z0-9+.\-]*:(?:\\*/){2}"

RULES = (
    Rule("private_key", "|".join(_PRIVATE_KEYS), before="", hints=("PRIVATE KEY",), accepts=_is_key_material),
    Rule("url_password", r"""[^\s/"'<>,]+""", before=rf"""{_SCHEME}[^\s/:"']*:""", after="@", hints=(":/", ":\\")),
    Rule(  # a password that should have been encoded, or is inside JSON text
        "url_password",
        r"""(?:[^\s"<>\\]|\\/)+""",
        before=rf"""{_SCHEME}[^\s/:@"']*:""",
        after="@",
        hints=(":/", ":\\"),
        accepts=_is_not_a_port,
    ),
    Rule("openai", rf"sk-{_WORD}{{20,}}", hints=("sk-",)),
    Rule("huggingface", r"(?:hf|api_org)_[A-Za-z0-9]{30,}", hints=("hf_", "api_org_")),
    Rule(
        "github",
        r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}",
        hints=("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    Rule("gitlab", rf"gl(?:pat|ptt|dt|rt)-{_WORD}{{20,}}", hints=("glpat-", "glptt-", "gldt-", "glrt-")),
    Rule("slack", r"xox[abeprs]-[A-Za-z0-9\-]{10,}|xapp-[A-Za-z0-9\-]{10,}", hints=("xox", "xapp-")),
    Rule("aws", r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}", after=r"\b|_", hints=("AKIA", "ASIA", "ABIA", "ACCA")),
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
    Rule("named", r"-?[0-9]{4,}(?:\.[0-9]+)?", before=_KEY, words=_WORDS),
)


ENVIRONMENT = "environment"


def environment() -> list[Rule]:
    """Return a rule for the secrets of the environment, which programs print."""
    values = filter(_is_secret, read_secrets())
    forms = tuple(dict.fromkeys(form for value in values for form in (value, json.dumps(value)[1:-1])))
    return [Rule(ENVIRONMENT, "|".join(map(_literal, forms)), before="", hints=forms)] if forms else []


def _is_secret(value: str) -> bool:
    """Check that the value is neither the path of a secret nor an ordinary word."""
    is_possible = not IN_THE_WAY.search(value) and not value.startswith(("/", "~", "./"))
    return is_possible and _is_long_or_has_digit(value)


def _literal(value: str) -> str:
    """Return the value as a literal of RE2."""
    parts = (rf"\Q{part}\E" for part in value.split(r"\E"))
    return r"\\E".join(parts)


def fault_of(pattern: str) -> str | None:
    """Return why RE2 rejects the pattern, or None if it accepts it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        empty = pc.match_substring_regex(pa.array([""]), pattern=f"(?:{pattern})")[0].as_py()
    except (pa.ArrowInvalid, UnicodeError) as error:
        return (
            f"{str(error).removeprefix('Invalid regular expression: ')} (patterns are RE2's, which has no lookaround)"
        )
    return "it matches the empty text, so it would match everywhere" if empty else None
