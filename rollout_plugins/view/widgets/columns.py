"""Define the columns of the viewer's tables: their names, and how values look in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_plugins.content.numbers import finite
from rollout_plugins.show.chart import LOGGED
from rollout_plugins.show.text import MISSING, number, one_line, tone

QUESTION, ANSWER = " asked", " said"
"""The question and the answer. These are not columns of the run, so rows cannot be sorted by them."""
FINDINGS = "findings."
"""The start of the names of columns that mark the rollouts of findings."""
_SEVERAL = 3
Shown = tuple[str, str]


def format_plain(value: Any) -> Shown:
    """Format numbers as people write them, None as a dash, and anything else as one safe line."""
    if value is None:
        return MISSING, "dim"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value), ""
    return one_line(value, 200), ""


def format_even(value: Any) -> Shown:
    """Format a reward or similar value with the same decimals in each row, so that they can be compared."""
    amount = finite(value)
    even = isinstance(value, float) and amount is not None and (not amount or 1e-3 <= abs(amount) < 1e6)
    return (f"{amount:,.3f}", "") if even else format_plain(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    name: str
    """The key in rows, by which rows are sorted; a name that starts with a space is not sortable."""
    label: str
    show: Callable[[Any], Shown] = format_plain
    left: bool = False
    """Whether it is left-aligned text, which takes the remaining width."""


def step_columns(stats: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns that have values."""
    columns = [
        *([Column("split", "split")] if {row["split"] for row in stats} - {"train"} else []),
        Column("step", "step"),
        Column("rollouts", "rollouts"),
        Column("reward", "reward", format_even),
        Column("not_finite", "NaN/inf", _format_warning("red")),
        *_functions(_rewards(stats)),
        Column("reward_std", "spread", format_even),
        Column("truncated", "cut off", _format_warning("yellow")),
        Column("tool_calls", "calls", _format_count),
        Column("tool_errors", "failed", _format_warning("red")),
        Column("errors", "errors", _format_warning("red")),
        Column("flat_groups", "flat", _format_count),
        Column("completion_tokens", "tokens", _format_rounded),
        Column("group_std", "in group", format_even),
        *(Column(name, label) for name, label in LOGGED.items()),
    ]
    always = {"split", "step", "rollouts", "reward", "truncated", "tool_calls", "tool_errors"}
    return [column for column in columns if column.name in always or any(row.get(column.name) for row in stats)]


def _rewards(stats: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in (stats[0] if stats else ()) if name.startswith("reward/")]


def _functions(names: Sequence[str]) -> list[Column]:
    """Return a column for each reward function; several ones are narrow enough to fit next to each other."""
    most = 20 if len(names) < _SEVERAL else 10
    return [Column(name, one_line(name.removeprefix("reward/"), most), format_even) for name in names]


def _format_rounded(value: Any) -> Shown:
    format_even = finite(value)
    return format_plain(value) if format_even is None else (f"{format_even:,.0f}", "")


def _format_count(value: Any) -> Shown:
    return (number(value), "") if value else ("·", "dim")


def _format_warning(style: str) -> Callable[[Any], Shown]:
    return lambda value: (number(value), style) if value else ("·", "dim")


def rollout_columns(names: Sequence[str], *, leave_out: set[str]) -> list[Column]:
    """Return the columns for a list of rollouts, including annotations."""
    available = set(names) - leave_out
    rewards = [name for name in names if name.startswith("reward/")]
    findings = [name for name in names if name.startswith(FINDINGS)]
    annotations = [name for name in names if "." in name and name not in {*rewards, *findings}]
    columns = [
        Column("split", "split"),
        Column("step", "step"),
        Column("group", "grp"),
        Column("index", "#"),
        Column("reward", "reward", _format_bold),
        *_functions(rewards),
        *(Column(name, one_line(name.removeprefix(FINDINGS), 12), _format_flag) for name in findings),
        Column(ANSWER, "answered", _text_or_pending, left=True),
        Column(QUESTION, "asked", _text_or_pending, left=True),
        Column("advantage", "adv", _format_signed),
        *(Column(name, one_line(name, 20), format_even) for name in annotations),
        Column("completion_tokens", "tokens"),
        Column("turns", "turns"),
        Column("calls", "calls", _format_count),
        Column("failed_calls", "failed", _format_warning("red")),
        Column("finish", "finish", _format_finish),
    ]
    return [column for column in columns if column.name in available or column.left]


def prompt_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns for the list of prompts, without those that have no values."""
    columns = [
        Column("band", "band", _format_band),
        Column("pass_rate", "passed", _format_percent),
        Column("trend", "trend", left=False),
        Column("reward_mean", "reward", format_even),
        Column("attempts", "attempts"),
        Column("first_solved", "solved at"),
        Column("steps_seen", "steps"),
        Column("completion_tokens", "tokens", _format_rounded),
        Column("failed_calls", "failed", _format_warning("red")),
        Column(QUESTION, "asked", _text_or_pending, left=True),
    ]
    return [column for column in columns if column.left or any(row.get(column.name) not in {None, ""} for row in rows)]


def _format_band(value: Any) -> Shown:
    return format_plain(value)[0], {"forgotten": "red", "stuck": "yellow", "learnt": "green"}.get(str(value), "dim")


def _format_percent(value: Any) -> Shown:
    return format_plain(value) if value is None else (f"{value:.0%}", "bold")


def _text_or_pending(value: Any) -> Shown:
    return ("…", "dim") if value is None else (value, "")


def _format_flag(value: Any) -> Shown:
    return ("●", "red") if value is not None else ("·", "dim")


def _format_bold(value: Any) -> Shown:
    text, style = format_even(value)
    return text, style or "bold"


def _format_signed(value: Any) -> Shown:
    if not isinstance(value, (int, float)):
        return format_plain(value)
    text, _ = format_even(value)
    return f"{'+' * (value > 0)}{text}", tone(value)


def _format_finish(value: Any) -> Shown:
    text, _ = format_plain(value)
    return text, {"stop": "dim", "unknown": "dim"}.get(text, "yellow")
