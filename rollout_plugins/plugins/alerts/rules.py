"""Rules of alerts: `truncated > 0.3 for 5 steps`, or `severe findings`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import pyarrow as pa

from rollout_plugins.errors import suggest
from rollout_plugins.plugins.alerts.numbers import NUMBERS, Number, reward_number

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
FINDINGS = {"findings": "warning", "severe findings": "severe", "info findings": "info"}
"""Rules about findings, and how severe these have to be."""
EXAMPLE = "'truncated > 0.3 for 5 steps'"
_RULE = re.compile(r"\s*(?P<name>\S+?)\s*(?P<sign>>=|<=|>|<)\s*(?P<bound>\S+)(?:\s+for\s+(?P<steps>\d+)\s+steps?)?\s*")


@dataclass(eq=False)
class NumberRule:
    """A rule about one number of a training step or an evaluation."""

    text: str
    name: str
    sign: str
    bound: float
    steps: int
    split: str
    number: Number | None
    """How to compute it from a generation; None if the trainer logs it."""
    _held: list[tuple[int, float]] = field(default_factory=list)
    _has_fired: bool = False

    @property
    def log_name(self) -> str:
        """The name in the trainer's log; empty if the number is computed from rollouts."""
        return self.name.removeprefix("log/") if self.number is None else ""

    @property
    def reward_name(self) -> str:
        """The reward function that the rule is about, if it is about one."""
        return self.name.removeprefix("reward/") if self.name.startswith("reward/") else ""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the store that the number needs."""
        return () if self.number is None else self.number.columns

    @property
    def where(self) -> str:
        """A SQL condition for the rollouts that show it; empty if there is none."""
        return "" if self.number is None else self.number.where

    def begin(self) -> None:
        """Forget the previous run."""
        self._held, self._has_fired = [], False

    def value_of(self, table: pa.Table) -> float | None:
        """Return the number of a generation; None if it has none, such as `failed_calls` without calls."""
        return None if self.number is None else self.number.compute(table)

    def begins_to_hold(self, step: int, value: float | None) -> bool:
        """Return whether the rule now holds for long enough, and did not before. A missing number changes nothing."""
        if value is None or isnan(value):
            return False
        if not OPERATORS[self.sign](value, self.bound):
            self.begin()
            return False
        if not self._held or self._held[-1][0] != step:  # a step may have several generations
            self._held.append((step, value))
        if self._has_fired or len(self._held) < self.steps:
            return False
        self._has_fired = True
        return True

    @property
    def held_steps(self) -> list[int]:
        """The steps for which the rule has held without a break."""
        return [step for step, _ in self._held]

    @property
    def sentence(self) -> str:
        """The state of the rule with its numbers: `truncated is 0.42 at step 16, and was > 0.3 for 5 steps`."""
        step, value = self._held[-1]
        since = f", and was {self.sign} {self.bound:g} for {self.steps} steps" if self.steps > 1 else ""
        bound = f" ({self.sign} {self.bound:g})" if self.steps == 1 else ""
        split = "eval " if self.split == "eval" else ""
        return f"{split}{self.name} is {value:.4g} at step {step}{bound}{since}"


@dataclass(frozen=True, slots=True)
class FindingRule:
    """A rule about new findings of checks."""

    text: str
    severity: str
    """How severe a finding has to be."""


def parse_rule(text: Any) -> NumberRule | FindingRule | str:
    """Return the rule that a text describes, or what is wrong with it."""
    if not isinstance(text, str):
        return f"rule {text!r} is not a text; write one such as {EXAMPLE}"
    if " ".join(text.split()) in FINDINGS:
        return FindingRule(text, FINDINGS[" ".join(text.split())])
    match = _RULE.fullmatch(text)
    if match is None:
        return f"rule {text!r} cannot be read; write one such as {EXAMPLE} or 'severe findings'"
    name, bound, steps = match["name"], _number(match["bound"]), int(match["steps"] or 1)
    if bound is None:
        return f"rule {text!r} compares with {match['bound']!r}, which is not a number"
    if not steps:
        return f"rule {text!r} has to hold for 0 steps; write at least 1"
    split = "eval" if name.startswith("eval/") else "train"
    name = name.removeprefix("eval/")
    if name.startswith("log/") and len(name) > 4 and split == "train":
        return NumberRule(text, name, match["sign"], bound, steps, split, None)
    if name.startswith("reward/") and len(name) > 7:
        return NumberRule(text, name, match["sign"], bound, steps, split, reward_number(name.removeprefix("reward/")))
    if name in NUMBERS:
        return NumberRule(text, name, match["sign"], bound, steps, split, NUMBERS[name])
    there = f"the numbers are {', '.join(NUMBERS)}, reward/NAME and log/NAME, or with eval/ in front"
    return f"rule {text!r} names {name!r}, which is not a number of a step; {suggest(name, NUMBERS)}; {there}"


def _number(text: str) -> float | None:
    """Return the number in `0.3` or `30%`; None if it is not one."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    return None if isnan(value) else value
