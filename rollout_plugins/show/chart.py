"""Draw numbers over steps with block characters. Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollout_plugins.content.messages import field_of
from rollout_plugins.content.numbers import finite
from rollout_plugins.show.layout import cut
from rollout_plugins.show.text import HANDFUL, number, one_line, share

# The values of a trainer's log that are charted, by their name in `stats`, with their labels.
LOGGED = {
    "log/loss": "loss", "log/grad_norm": "gradient norm", "log/kl": "KL", "log/entropy": "entropy",
    "log/learning_rate": "learning rate", "log/step_time": "seconds a step",
}  # fmt: skip
_BLOCKS = "▁▂▃▄▅▆▇█"
# Columns of one step in a chart of few steps.
_WIDEST = 20
# The lines from which on a second chart fits.
_ROOMY = 12


def training(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the steps of training; all steps if the run was only evaluated."""
    return [row for row in rows if row["split"] == "train"] or rows


def sparkline(numbers: Iterable[Any]) -> str:
    """Return one character per number, low to high, and a space for a value that is not a finite number."""
    values = [finite(value) for value in numbers]
    numbers_only = [value for value in values if value is not None]
    low, high = (min(numbers_only), max(numbers_only)) if numbers_only else (0.0, 0.0)
    return "".join(" " if value is None else _BLOCKS[_level(value, low, high, len(_BLOCKS) - 1)] for value in values)


def _level(value: float, low: float, high: float, levels: int) -> int:
    # Halved first, so that the distance between the two largest floats is still a finite number.
    span = high / 2 - low / 2
    return round((value / 2 - low / 2) / span * levels) if span > 0 else (levels + 1) // 2


def render_steps(rows: Sequence[Mapping[str, Any]], *, width: int = 80, max_lines: int = 14) -> RenderableType:
    """Draw reward and tool errors over steps, in at most `max_lines` lines; with few lines, only the reward.

    Each row is a step: `{"step": 3, "reward": 0.71, "tool_calls": 40, "tool_errors": 2}`. Any value may be missing.
    """
    steps = [field_of(row, "step") for row in rows]
    rewards = [finite(field_of(row, "reward")) for row in rows]
    failures = [_share(field_of(row, "tool_errors"), field_of(row, "tool_calls")) for row in rows]
    tools = any(finite(field_of(row, "tool_calls")) for row in rows)
    functions = _functions(rows, width)
    has_two = tools and max_lines >= _ROOMY
    # Each chart has a title and an axis. The reward gets two thirds of the height.
    height = max_lines - len(functions) - (5 if has_two else 3 if tools else 2)
    error_height = min(max(height // 3, 1), 3) if has_two else 0
    lines = [*_chart("reward", rewards, steps, width, min(height - error_height, 8)), *functions]
    failed = f"{_failed(rows[0])} → {_failed(rows[-1])}" if tools else ""
    if has_two:
        title = "tool calls that failed"
        lines += [Text(""), *_chart(title, failures, steps, width, error_height, shares=True, summary=failed)]
    elif tools:
        lines.append(cut(Text.assemble(("tool calls that failed ", "bold"), (failed, "red")), width, "crop"))
    return Group(*lines[: max(max_lines, 0)])


def _functions(rows: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """Return a line with the first and last value of each of several reward functions: one may fall as the total
    rises.
    """
    first = rows[0] if rows and isinstance(rows[0], Mapping) else {}
    names = [name for name in first if isinstance(name, str) and name.startswith("reward/")]
    courses = {name: [finite(field_of(row, name)) for row in rows] for name in names if len(names) > 1}
    ends = [(name, *_ends(values)) for name, values in courses.items() if any(value is not None for value in values)]
    line = Text(no_wrap=True)
    # falling ones first, because the end may be cut off
    for name, start, end in sorted(ends, key=lambda course: course[2] >= course[1]):
        line.append(f"{'  ' * bool(line)}{one_line(name.removeprefix('reward/'), 12)} ", "bold")
        line.append(f"{number(start)} → {number(end)}", "red" if end < start else "green")
    return [cut(line, width, "ellipsis")] if line else []


def _ends(values: Sequence[float | None]) -> tuple[float, float]:
    numbers = [value for value in values if value is not None]
    return numbers[0], numbers[-1]


def _failed(row: Mapping[str, Any]) -> str:
    calls = finite(field_of(row, "tool_calls"))
    return share(field_of(row, "tool_errors"), calls) if calls else "no calls"


def _share(errors: Any, calls: Any) -> float | None:
    failed, total = finite(errors), finite(calls)
    return (
        min(max(failed / total, 0.0), 1.0) if failed is not None and total is not None and total >= HANDFUL else None
    )


def _percent(value: Any) -> str:
    real = finite(value)
    return number(None) if real is None else f"{real:.0%}"


def _chart(
    title: str,
    values: Sequence[float | None],
    steps: Sequence[Any],
    width: int,
    height: int,
    *,
    shares: bool = False,
    summary: str = "",
) -> list[Text]:
    """Draw a chart; `summary` replaces the first and the last value in its title."""
    color, label = ("red", _percent) if shares else ("green", number)
    numbers = [value for value in values if value is not None]
    if not numbers or height < 1 or width < 16:
        return [cut(Text.assemble((title, "bold"), f" {summary}" if summary else "  no numbers yet"), width, "crop")]
    # Shares start at 0%, and a run without failures is a flat line at the bottom.
    low, high = (0.0, max(numbers) or 1.0) if shares else (min(numbers), max(numbers))
    names = (label(high), label(low))
    gutter = max(map(len, names)) + 2
    bars = _bars(values, max(width - gutter - 2, 1))
    lines = [Text.assemble((f"{title} ", "bold"), (summary or f"{label(numbers[0])} → {label(numbers[-1])}", color))]
    for level in range(height, 0, -1):
        name = names[0] if level == height else names[1] if level == 1 else ""
        drawn = "".join(_cell(value, low, high, height, level) for value in bars)
        lines.append(Text.assemble((f"{name:>{gutter - 1}} ", "dim"), ("│", "dim"), (drawn, color)))
    lines.append(Text(" " * gutter + "└" + _axis(steps, len(bars)), style="dim"))
    return [cut(line, width, "crop") for line in lines]


def _bars(values: Sequence[float | None], room: int) -> list[float | None]:
    """Return one value per column: a step takes several columns, or several steps are averaged."""
    if len(values) <= room:
        wide = min(room, len(values) * _WIDEST)
        return [values[column * len(values) // wide] for column in range(wide)]
    edges = [len(values) * column // room for column in range(room + 1)]
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(value / len(numbers) for value in numbers) if numbers else None


def _cell(value: float | None, low: float, high: float, height: int, level: int) -> str:
    if value is None:
        return " "
    # The lowest value still gets a thin bar, to differ from a gap.
    filled = max(_level(value, low, high, height * 8), 1) - (level - 1) * 8
    return "█" if filled >= 8 else _BLOCKS[filled - 1] if filled > 0 else " "


def _axis(steps: Sequence[Any], columns: int) -> str:
    first, last = (f"step {one_line(steps[0], 12)}", one_line(steps[-1], 12))
    room = columns - len(first) - len(last)
    return f"{first}{'─' * (room - 2):^{room}}{last}" if room > 3 and len(steps) > 1 else first
