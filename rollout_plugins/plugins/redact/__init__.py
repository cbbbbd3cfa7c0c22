"""Replace secrets before the store or any sink receives a rollout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from rollout_hookspecs import Drop, Rollout, Run, Step, hookimpl

from rollout_plugins.content.hashing import content_hash
from rollout_plugins.plugins.redact.places import SEARCHED, Counts, Walk, path_faults
from rollout_plugins.plugins.redact.scanner import Scanner
from rollout_plugins.plugins.redact.secrets import ENVIRONMENT, NAMED, RULES, Rule, environment, fault_of
from rollout_plugins.system.option_checks import check, flag
from rollout_plugins.system.warn_once import Once

NAMES = (*dict.fromkeys(rule.name for rule in RULES), ENVIRONMENT)

Cleaned = tuple[str, Counter[str]]


class Redact:
    """Replaces secrets by `[REDACTED:<rule>]` in everything that is stored, sent or logged.

    That includes every text of a rollout: messages, tool calls and results, columns, extras, errors, marks, names, and
    text where a number belongs. It also includes what other plugins add, however late; their traces, alerts and metric
    names; the facts of the run; and the reasons that hosts give for losses. Our log names only the type and place of
    an error. Names of plugins are not changed. Matching takes linear time for every pattern. A value that can't be
    searched is replaced. If a secret was in a rollout's texts, its token ids are left out, as they spell it. `marks`
    states what was replaced in a rollout, and `redacted/<rule>` counts it. The metadata of image files (EXIF, XMP,
    comments) is left out, except the orientation.

    Terminal colours and zero-width characters around or inside a secret do not hide it, nor do the escapes of JSON,
    `repr` and URLs around it. A secret that a person would not recognise is not found either: in another encoding
    (base64, or entirely URL-encoded), in the middle page of a key file, or in the pixels of a picture.

    rules: which built-in rules apply, by default all: private_key, url_password, openai, huggingface, github,
        gitlab, slack, aws, google, stripe, package_index, vendor (other API keys), jwt, bearer, assigned
        (`password=…` in text, if the value has six characters or more and a digit, so that `password = required`
        stays), named (values of keys that end in password, api_key, …, such as `db_password`, also in text that shows
        a dict; numbers of four digits or more), environment (values of variables called …_KEY, …_TOKEN, …_SECRET or
        …_PASSWORD when the run starts).
        Redact(rules=["openai", "aws", "private_key"])
    patterns: your own regular expressions (RE2 syntax), as a list, or as a mapping of name to pattern. They apply
        to whole numbers, too, except in rewards and other measured fields.
        Redact(patterns={"employee": r"EMP-\\d{6}"})
    function: your own function from text to text, called with every text after the rules.
        Redact(function=lambda text: text.replace("Project Falcon", "[PROJECT]"))
    fields: paths of values to replace entirely, starting at prompt, completion, tool_calls, columns, extra, error or
        rendered; `*` is any key or index, and `**.name` a key of that name anywhere, also in text that shows a dict,
        such as the JSON of a tool's result.
        Redact(fields=["columns.email", "extra.*.user", "**.ssn"])
    keep_equal: equal secrets become equal tokens (`[REDACTED:openai#9f86d081]`), across ranks and restarts of a run.
        Redact(keep_equal=True)
    salt: for `keep_equal`, used instead of the run id: the tokens are then equal across runs, too, and nobody can
        guess a secret from its token while the salt is secret.
        Redact(keep_equal=True, salt=os.environ["REDACT_SALT"])
    """

    required = True
    """Whatever this plugin could not search, because it failed or hung, is neither stored nor sent."""

    def __init__(
        self,
        rules: Sequence[str] = NAMES,
        *,
        patterns: Mapping[str, str | re.Pattern[str]] | Sequence[str | re.Pattern[str]] = (),
        function: Callable[[str], str] | None = None,
        fields: Sequence[str] = (),
        keep_equal: bool = False,
        salt: str = "",
    ) -> None:
        own, pattern_faults = _own_rules(patterns)
        check(
            "redact",
            _rules_fault(rules),
            *pattern_faults,
            None if function is None or callable(function) else f"function={function!r} is not a function",
            *path_faults(fields),
            flag("keep_equal", keep_equal),
            None if isinstance(salt, str) else f"salt={salt!r} is not text",
            "salt is only for keep_equal=True" if salt and keep_equal is False else None,
        )
        self._rules = [*own, *(rule for rule in RULES if rule.name in rules)]
        self._reads_environment = ENVIRONMENT in rules
        self._function = function
        names = frozenset(NAMED if "named" in rules else ())
        self._walk = Walk(fields, names, self._token, private_keys="private_key" in rules)
        self._has_own_rules = bool(own)
        self._keep_equal = keep_equal
        self._salt = salt
        self._begin("")

    def _begin(self, run: str) -> None:
        self._key = _key(self._salt or run)
        secrets = environment() if self._reads_environment else []
        self._scanner = Scanner([*self._rules, *secrets], self._token)
        self._walk.reads_numbers = self._has_own_rules or any(
            hint.isdecimal() for rule in secrets for hint in rule.hints
        )
        self._counts: dict[str, Counter[str]] = {}
        self._once = Once()
        self._without_secrets: frozenset[str] = frozenset()
        """Texts of the last rollout that need not be searched again."""

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        self._begin(run.id)

    @hookimpl(trylast=True)  # run last, to see what other plugins add
    def on_rollout(self, rollout: Rollout) -> Rollout | None:
        try:
            return self._redacted(rollout)
        except Exception as error:
            self._warn("a rollout could not be searched and was dropped", error)
            raise Drop("could not be searched for secrets") from None

    def _redacted(self, rollout: Rollout) -> Rollout | None:
        before = {name: getattr(rollout, name) for name in SEARCHED}
        after, counted = self._searched(before)
        changed = {name for name in before if after[name] is not before[name]}
        if not changed:
            return None
        counts = counted.first or counted.again
        self._counts.setdefault(rollout.split, Counter()).update(counts)
        summary = ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items()))
        # The token ids spell the texts.
        drop_tokens = rollout.tokens is not None and not changed.isdisjoint({"prompt", "completion", "rendered"})
        summary = "; ".join(filter(None, [after["marks"].get("redact"), summary]))  # redact may run twice
        after["marks"] = {**after["marks"], "redact": f"{summary}, token ids left out" if drop_tokens else summary}
        return replace(rollout, **(after | {"tokens": None} if drop_tokens else after))

    def clean(self, value: Any) -> Any:
        """Redact anything else that leaves the process: run facts, late marks, other plugins' traces, alerts, metric
        names.
        """
        after = self._searched({"value": value})[0]["value"]
        if type(after) is not type(value):
            raise TypeError(f"could not search {type(value).__name__}")
        return after

    def _searched(self, before: dict[str, Any]) -> tuple[dict[str, Any], Counts]:
        """Return the values without secrets, and how many there were."""
        texts: dict[str, None] = {}
        counted = Counts(Counter(), Counter())
        after = self._walk.replace_values(before, texts, counted)
        clean = self._clean_texts(list(texts))
        return (self._walk.replace_texts(after, clean, counted) if clean else after), counted

    @hookimpl
    def rollout_metrics(self, step: Step) -> Mapping[str, float] | None:
        """Return how many secrets were replaced since the last call."""
        counts = self._counts.pop(step.split, None)
        return None if not counts else {f"redacted/{rule}": float(count) for rule, count in counts.items()}

    def _clean_texts(self, texts: list[str]) -> dict[str, Cleaned]:
        """Return the replacement of each text that changes. A text that can't be searched is replaced entirely."""
        # Consecutive rollouts of a group share their prompt, so texts without secrets are remembered.
        fresh = [text for text in texts if text not in self._without_secrets]
        try:
            scanned = self._scanner.scan(fresh)
        except Exception:
            scanned = [self._scan_alone(text) for text in fresh]
        if self._function is not None:
            scanned = [self._through_function(text, counts) for text, counts in scanned]
        changed = {old: (new, counts) for old, (new, counts) in zip(fresh, scanned, strict=True) if new != old}
        if self._function is None:
            self._without_secrets = frozenset(text for text in texts if text not in changed)
        return changed

    def _scan_alone(self, text: str) -> Cleaned:
        try:
            return self._scanner.scan([text])[0]
        except Exception as error:
            self._warn("a text could not be searched and was replaced", error)
            return self._token("unsearchable", text), Counter(unsearchable=1)

    def _through_function(self, text: str, counts: Counter[str]) -> Cleaned:
        assert self._function is not None
        try:
            new = self._function(text)
            fault = None if isinstance(new, str) else TypeError("not text")
        except Exception as error:
            fault = error
        if fault is not None:
            self._warn("the function failed, so texts are replaced", fault)
            new = self._token("function", text)
        return (text, counts) if new == text else (new, counts + Counter(function=1))

    def _warn(self, message: str, error: Exception) -> None:
        # The error's own message may contain the secret.
        self._once.warn("redact: %s: %s", message, type(error).__name__, about=message)

    def _token(self, rule: str, secret: Any) -> str:
        if not self._keep_equal:
            return f"[REDACTED:{rule}]"
        return f"[REDACTED:{rule}#{blake2b(_encoded(secret), digest_size=4, key=self._key).hexdigest()}]"


def _key(salt: str) -> bytes:
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _encoded(secret: Any) -> bytes:
    return secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else content_hash(secret).encode()


def _rules_fault(rules: Any) -> str | None:
    if isinstance(rules, (list, tuple, set, frozenset)):
        wrong = [rule for rule in rules if rule not in NAMES]
        return f"rules has {wrong}; the rules are {', '.join(NAMES)}" if wrong else None
    return f"rules={rules!r} is not a list of names; the rules are {', '.join(NAMES)}"


def _own_rules(patterns: Any) -> tuple[list[Rule], list[str]]:
    """Return the user's patterns as rules, and what is wrong with the others."""
    if isinstance(patterns, (str, re.Pattern)) or not isinstance(patterns, (Mapping, Sequence)):
        return [], [f"patterns={patterns!r} is neither a list of patterns nor a mapping of name to pattern"]
    named = patterns.items() if isinstance(patterns, Mapping) else [("pattern", pattern) for pattern in patterns]
    rules, faults = [], []
    for name, pattern in named:
        text = _pattern_text(pattern)
        fault = "it is not a pattern" if text is None else fault_of(text)
        if fault is None and (not isinstance(name, str) or name in NAMES):
            fault = "its name is not text" if not isinstance(name, str) else "its name is a built-in rule's"
        if fault is not None:
            faults.append(f"pattern {name!r}: {pattern!r}: {fault}")
        else:
            rules.append(Rule(name, f"(?:{text})", before=""))
    return rules, faults


def _pattern_text(pattern: Any) -> str | None:
    """Return the pattern with its flags written into it, as RE2 expects them."""
    if not isinstance(pattern, re.Pattern):
        return pattern if isinstance(pattern, str) else None
    if not isinstance(pattern.pattern, str) or pattern.flags & re.VERBOSE:
        return None
    flags = "".join(
        letter
        for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL))
        if pattern.flags & flag
    )
    return f"(?{flags}:{pattern.pattern})" if flags else pattern.pattern
