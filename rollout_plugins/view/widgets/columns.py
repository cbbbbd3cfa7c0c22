"""The columns of the tables: what they are called, and how a value looks in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_plugins.content.numbers import finite
from rollout_plugins.show.chart import LOGGED
from rollout_plugins.show.text import MISSING, number, one_line, tone

QUESTION, ANSWER = " asked", " said"
"""What was asked and answered. These are not columns of the run, so nothing can be sorted by them."""
FINDINGS = "findings."
"""What the names of columns begin with that mark the rollouts of findings."""
_SEVERAL = 3
Shown = tuple[str, str]


def plain(value: Any) -> Shown:
    """Numbers as people write them, a dash for nothing, all else on one safe line."""
    if value is None:
        return MISSING, "dim"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value), ""
    return one_line(value, 200), ""


def real(value: Any) -> Shown:
    """A reward and the like, with the same decimals in each row, so that they can be compared."""
    known = finite(value)
    even = isinstance(value, float) and known is not None and (not known or 1e-3 <= abs(known) < 1e6)
    return (f"{known:,.3f}", "") if even else plain(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    name: str
    """What rows call it, and what it is sorted by; a name that starts with a space is not for sorting."""
    label: str
    show: Callable[[Any], Shown] = plain
    left: bool = False
    """Text, which starts at the left, and takes what room the others leave."""


def step_columns(stats: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Those columns in which something is known."""
    made = [
        *([Column("split", "split")] if {row["split"] for row in stats} - {"train"} else []),
        Column("step", "step"),
        Column("rollouts", "rollouts"),
        Column("reward", "reward", real),
        Column("not_finite", "NaN/inf", _warned("red")),
        *_functions(_rewards(stats)),
        Column("reward_std", "spread", real),
        Column("truncated", "cut off", _warned("yellow")),
        Column("tool_calls", "calls", _counted),
        Column("tool_errors", "failed", _warned("red")),
        Column("errors", "errors", _warned("red")),
        Column("flat_groups", "flat", _counted),
        Column("completion_tokens", "tokens", _rounded),
        Column("group_std", "in group", real),
        *(Column(name, label) for name, label in LOGGED.items()),
    ]
    always = {"split", "step", "rollouts", "reward", "truncated", "tool_calls", "tool_errors"}
    return [column for column in made if column.name in always or any(row.get(column.name) for row in stats)]


def _rewards(stats: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in (stats[0] if stats else ()) if name.startswith("reward/")]


def _functions(names: Sequence[str]) -> list[Column]:
    """What each reward function gave, narrow enough to stand beside the reward where there are several."""
    most = 20 if len(names) < _SEVERAL else 10
    return [Column(name, one_line(name.removeprefix("reward/"), most), real) for name in names]


def _rounded(value: Any) -> Shown:
    real = finite(value)
    return plain(value) if real is None else (f"{real:,.0f}", "")


def _counted(value: Any) -> Shown:
    return (number(value), "") if value else ("·", "dim")


def _warned(style: str) -> Callable[[Any], Shown]:
    return lambda value: (number(value), style) if value else ("·", "dim")


def rollout_columns(names: Sequence[str], *, leave_out: set[str]) -> list[Column]:
    """What a list of rollouts shows of each, annotations among it."""
    there = set(names) - leave_out
    rewards = [name for name in names if name.startswith("reward/")]
    findings = [name for name in names if name.startswith(FINDINGS)]
    annotations = [name for name in names if "." in name and name not in {*rewards, *findings}]
    made = [
        Column("split", "split"),
        Column("step", "step"),
        Column("group", "grp"),
        Column("index", "#"),
        Column("reward", "reward", _bold),
        *_functions(rewards),
        *(Column(name, one_line(name.removeprefix(FINDINGS), 12), _flag) for name in findings),
        Column(ANSWER, "answered", _said, left=True),
        Column(QUESTION, "asked", _said, left=True),
        Column("advantage", "adv", _signed),
        *(Column(name, one_line(name, 20), real) for name in annotations),
        Column("completion_tokens", "tokens"),
        Column("turns", "turns"),
        Column("calls", "calls", _counted),
        Column("failed_calls", "failed", _warned("red")),
        Column("finish", "finish", _finish),
    ]
    return [column for column in made if column.name in there or column.left]


def prompt_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """What the list of prompts shows of each; columns in which nothing is known are left out."""
    made = [
        Column("band", "band", _band),
        Column("pass_rate", "passed", _percent),
        Column("trend", "trend", left=False),
        Column("reward_mean", "reward", real),
        Column("attempts", "attempts"),
        Column("first_solved", "solved at"),
        Column("steps_seen", "steps"),
        Column("completion_tokens", "tokens", _rounded),
        Column("failed_calls", "failed", _warned("red")),
        Column(QUESTION, "asked", _said, left=True),
    ]
    return [column for column in made if column.left or any(row.get(column.name) not in {None, ""} for row in rows)]


def _band(value: Any) -> Shown:
    return plain(value)[0], {"forgotten": "red", "stuck": "yellow", "learnt": "green"}.get(str(value), "dim")


def _percent(value: Any) -> Shown:
    return plain(value) if value is None else (f"{value:.0%}", "bold")


def _said(value: Any) -> Shown:
    return ("…", "dim") if value is None else (value, "")


def _flag(value: Any) -> Shown:
    return ("●", "red") if value is not None else ("·", "dim")


def _bold(value: Any) -> Shown:
    text, style = real(value)
    return text, style or "bold"


def _signed(value: Any) -> Shown:
    if not isinstance(value, (int, float)):
        return plain(value)
    text, _ = real(value)
    return f"{'+' * (value > 0)}{text}", tone(value)


def _finish(value: Any) -> Shown:
    text, _ = plain(value)
    return text, {"stop": "dim", "unknown": "dim"}.get(text, "yellow")
