"""Show a run, a list of rollouts, or one rollout, in a notebook and at a Python prompt. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rollout_hookspecs import Finding, Rollout, Run, ToolCall, Verdict

from rollout_plugins.content.numbers import finite
from rollout_plugins.show.chart import sparkline, training
from rollout_plugins.show.conversation import Turn, completion_text, conversation, question_text
from rollout_plugins.show.layout import call_signature, outcome_of, split_reasoning
from rollout_plugins.show.render import facts, position_facts
from rollout_plugins.show.text import brief, clean, evenly, number, one_line, readable, shorten
from rollout_plugins.system.labels import count, run_name
from rollout_plugins.system.remote_runs import display_place

# Characters of a text, turns at either end, and points of a sparkline.
_CHARS, _ENDS, _POINTS = 4000, 30, 40
_LEFT = {"user": "#0072b2", "assistant": "#009e73", "tool": "#b98500"}
_DIM, _FIXED = "opacity:.65;", "font-family:monospace;"
_OUTCOME = {"red": "color:#d1382c;", "yellow": "color:#a87b00;"}


def rollout_html(rollout: Rollout) -> str:
    """Return the conversation as HTML, below its reward."""
    view = conversation(rollout)
    scores = [f"reward {number(view.reward)}", *(fact.plain for fact in facts(view))]
    head = f"<b>{escape(' · '.join(position_facts(view)))}</b>{_text(' · '.join(scores), _DIM)}"
    hidden = len(view.turns) - 2 * _ENDS
    rows = list(map(_turn, view.turns if hidden <= 0 else (*view.turns[:_ENDS], *view.turns[-_ENDS:])))
    if hidden > 0:
        rows.insert(_ENDS, _text(f"… {count(hidden, 'message')} …", _DIM))
    error = [_text(readable(view.error), _OUTCOME["red"])] if view.error is not None else []
    return f'<div style="max-width:60em">{head}{"".join([*rows, *error])}</div>'


def _turn(turn: Turn) -> str:
    thoughts, text = split_reasoning(turn)
    parts = [*(_text(thought, _DIM) for thought in thoughts), *([_text(text)] if text else [])]
    parts += [part for call in turn.calls for part in _call(call)]
    style = f"border-left:3px solid {_LEFT.get(turn.role, '#888')};padding-left:12px;margin:10px 0"
    return f'<div style="{style}"><b>{escape(one_line(turn.role, 40))}</b>{"".join(parts)}</div>'


def _call(call: ToolCall) -> Iterable[str]:
    outcome, style = outcome_of(call)
    yield _text(call_signature(call), _FIXED)
    if outcome:
        yield _text(f"→ {outcome}", _FIXED + _OUTCOME.get(style, _DIM))


def _text(text: str, style: str = "") -> str:
    html_text = escape(clean(shorten(text.strip("\n"), _CHARS)))
    return f'<div style="white-space:pre-wrap;overflow-wrap:anywhere;{style}">{html_text}</div>'


def rollouts_html(first: Sequence[Rollout], total: int) -> str:
    """Return the first of some rollouts as an HTML table."""
    head = ("step", "group", "#", "reward", "finish", "asked", "answered")
    rows = [
        (
            *map(number, (rollout.step, rollout.group, rollout.index, rollout.reward)),
            one_line(rollout.finish, 20),
            one_line(question_text(rollout), 80),
            one_line(completion_text(rollout), 80),
        )
        for rollout in first
    ]
    more = f"<div>{count(total, 'rollout')}{f', the first {len(rows)} of them' * (total > len(rows))}</div>"
    return more + _table([_row("th", head), *(_row("td", row) for row in rows)])


def course(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the reward over the steps, as in ▁▃▅█ 0.125 → 1.0; "" without rewards."""
    rewards = [finite(row["reward"]) for row in training(rows)]
    numbers = [reward for reward in rewards if reward is not None]
    if len(numbers) < 2:
        return "".join(map(number, numbers))
    return f"{sparkline(evenly(rewards, _POINTS))} {number(numbers[0])} → {number(numbers[-1])}".lstrip()


def run_line(run: Run, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the run as one line for a Python prompt."""
    facts = [count(sum(row["rollouts"] for row in rows), "rollout"), f"steps {_steps(rows)}", f"reward {course(rows)}"]
    where = display_place(Path(run.dir))
    return f"<StoredRun {run_name(run)!r}: {', '.join(facts) if rows else 'no rollouts'}; in {where}>"


def _steps(rows: Sequence[Mapping[str, Any]]) -> str:
    train = training(rows)
    ends = list(dict.fromkeys(number(row["step"]) for row in (*train[:1], *train[-1:])))
    return " to ".join(ends) or "none"


def findings_html(findings: Sequence[Finding], verdicts: Sequence[Verdict] = ()) -> str:
    """Return what checks found, each finding with a rollout that shows it; then which checks could not look."""
    lines = [_finding(finding) for finding in findings]
    unobserved = [f"{verdict.check} ({verdict.why})" for verdict in verdicts if verdict.verdict == "unobserved"]
    clear = sum(verdict.verdict == "clear" for verdict in verdicts)
    counts = [f"{clear} of {count(len(verdicts), 'check')} clear"] if verdicts else []
    counts += [f"not observed: {', '.join(unobserved)}"] if unobserved else []
    return "".join(lines) + (_text("; ".join(counts), _DIM) if counts else "")


def _finding(finding: Finding) -> str:
    color = _OUTCOME.get({"severe": "red", "warning": "yellow"}.get(finding.severity, ""), "")
    head = f'<b style="{color}">{escape(finding.severity)}</b> <b>{_cell(finding.title)}</b>'
    example = f"rollouts such as {finding.rollouts[0]}" if finding.rollouts else ""
    return f"<div>{head}{_text(finding.text)}{_text(finding.advice, _DIM)}{_text(example, _DIM + _FIXED)}</div>"


def run_html(run: Run, rows: Sequence[Mapping[str, Any]], findings: Sequence[Finding] = (), **more: str) -> str:
    """Return the findings of checks, the facts of the run, and `more` facts, as HTML."""
    calls, failed, cut = (sum(row[name] for row in rows) for name in ("tool_calls", "tool_errors", "truncated"))
    values = {
        "run": run_name(run),
        "trainer": run.trainer,
        "rollouts": f"{sum(row['rollouts'] for row in rows):,}",
        "steps": _steps(rows),
        "reward": course(rows),
        "tool calls": f"{calls:,}, {failed:,} failed" if calls else "",
        "cut off": f"{cut:,}" if cut else "",
        **more,
        "folder": display_place(Path(run.dir)),
    }
    return findings_html(findings) + _table(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{_cell(value)}</td></tr>'
        for name, value in values.items()
        if value
    )


def rows_html(rows: Sequence[Mapping[str, Any]], *, names: Sequence[str] = (), head: str = "") -> str:
    """Return a table with a column for each name, or for each key of the first row."""
    columns = list(names or (rows[0] if rows else ()))
    cells = [[brief(row[name], 120) if row[name] is not None else "" for name in columns] for row in rows]
    above = f"<div>{escape(head)}</div>" if head else ""
    return above + _table([_row("th", columns), *(_row("td", row) for row in cells)])


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(rows)}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(text: str) -> str:
    return escape(clean(text))
