"""Implement `rollouts stats RUN`."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from rollout_plugins.cli.chosen import add_allow_damaged, add_run, check_filters, note_damage, opened
from rollout_plugins.cli.common import add_json, busy, console, note, print_json, print_table, show, table_of
from rollout_plugins.content.findings import as_row
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show import render_steps, sparkline
from rollout_plugins.show.chart import LOGGED, training
from rollout_plugins.show.text import evenly, number, one_line, share
from rollout_plugins.system.labels import count, format_not_finite

ROWS = 8
SPARE = ("errors", "max", "min", "cut off", "failed", "rollouts", "tokens", "calls")
SPARKS = 24
MAX_WARNINGS = 5
MAX_FINDINGS = 5


def configure(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--split", help="train or eval (default: both)")
    parser.add_argument("--all", action="store_true", help="show every step, on a terminal too")
    add_allow_damaged(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    stored = opened(options.run)
    with busy("counting"):
        check_filters(stored, {"split": options.split})
        rows = [row for row in stored.stats() if options.split in {None, row["split"]}]
    if options.json:
        facts = {
            "run": stored.info.id,
            "name": stored.name,
            "folder": stored.place,
            "steps": rows,
            "findings": [as_row(finding) for finding in stored.findings],
            "not_finite": stored.health.not_finite,
            "drops": stored.health.drops,
            "untrained": stored.health.untrained,
            "unsent": stored.health.unsent,
            "skipped": stored.health.skipped,
            "plugin_errors": stored.health.plugin_errors,
            "warnings": stored.health.warnings,
            "costs": stored.health.costs,
        }
        print_json({**facts, "annotations": stored.annotations, "damaged": stored.health.damaged})
        return note_damage(stored, allowed=options.allow_damaged)
    if not rows:
        note(f"{stored.place} has no rollouts")
    elif sys.stdout.isatty():
        _print(stored, rows, whole=options.all)
    else:
        print_table(_readable(rows, {"split"}))
    for line in _lines(stored):
        note(line)
    return note_damage(stored, allowed=options.allow_damaged)


def _lines(stored: StoredRun) -> Iterator[str]:
    """Yield what there is to report below the statistics."""
    yield from _finding_lines(stored)
    if odd := stored.health.not_finite:
        yield f"NaN or infinite: {format_not_finite(odd)}; rollouts show --where 'not isfinite(reward)' lists rollouts"
    for reason, lost in stored.health.drops.items():
        yield f"lost: {lost:,} {reason}"
    for reason, untrained in stored.health.untrained.items():
        yield f"not trained on: {untrained:,} {reason}"
    for name, unsent in stored.health.unsent.items():
        yield f"not sent while training: {unsent:,} to {name}; `rollouts export` sends them"
    for name, skipped in stored.health.skipped.items():
        yield f"not sent to the sinks: {skipped:,} skipped by {name}"
    for name, failures in stored.health.plugin_errors.items():
        yield f"plugin {name} failed {count(failures, 'time')}"
    for text, times in list(stored.health.warnings.items())[:MAX_WARNINGS]:
        yield f"warning: {text}{f' ({times:,} times)' if times > 1 else ''}"
    if len(stored.health.warnings) > MAX_WARNINGS:
        yield f"and {count(len(stored.health.warnings) - MAX_WARNINGS, 'other warning')}, see run.health.warnings"
    if stored.health.costs:
        yield _recording(**stored.health.costs)


def _finding_lines(stored: StoredRun) -> Iterator[str]:
    """Yield the most severe findings, and the command that says what to do about them."""
    findings = stored.findings
    for finding in findings[:MAX_FINDINGS]:
        yield f"{finding.severity}: {finding.text}"
    if findings:
        more = f"{count(len(findings) - MAX_FINDINGS, 'more finding')}, and " if len(findings) > MAX_FINDINGS else ""
        yield f"{more}what to do about them: rollouts check {shlex.quote(stored.place)}"


def _recording(bytes_written: float, queue_bytes: float, **seconds: float) -> str:
    """Return a line with what recording cost."""
    waited, beside = seconds["seconds/training_thread"], seconds["seconds/worker"]
    sizes = f"{bytes_written / 2**20:,.1f} MB written, at most {queue_bytes / 2**20:,.1f} MB waiting"
    return f"recording took {waited:,.2f} s of training and {beside:,.2f} s beside it; {sizes}"


def _print(stored: StoredRun, rows: Sequence[Mapping[str, Any]], *, whole: bool) -> None:
    """Print charts of the run, and the numbers of as many steps as fit the screen."""
    screen = console()
    room = max(min(screen.height - 20, ROWS), 4)
    parts: list[Any] = _charts(stored, rows, screen.width, room + 4)
    lines = len(parts) + room + 3
    for split in dict.fromkeys(row["split"] for row in rows):
        chosen = [row for row in rows if row["split"] == split]
        shown = chosen if whole else evenly(chosen, room)
        some = f"{len(shown)} of {len(chosen)} steps, --all for all" if len(shown) < len(chosen) else "every step"
        readable = _readable(shown, set())
        parts += [Text(), Text(f"{one_line(split, 20)}: {some}", style="dim")]
        parts += [table_of(readable, list(readable[0]), width=screen.width, spare=SPARE)]
        lines += len(shown) + 5
    show(Group(*parts), lines)


def _readable(rows: Sequence[Mapping[str, Any]], more: set[str]) -> list[dict[str, Any]]:
    """Return the columns that a person compares, without those that are empty in this run."""
    named = [name for name in rows[0] if name.startswith("reward/")]
    quiet = {
        "calls": "tool_calls",
        "failed": "tool_calls",
        "errors": "errors",
        "not finite": "not_finite",
        "cut off": "truncated",
        "in group": "groups",
    }
    empty = {name for name, of in quiet.items() if not any(row[of] for row in rows)}
    empty |= {"split"} - more
    empty |= {name.removeprefix("reward/") for name in named} if len(named) == 1 else set()
    return [{name: value for name, value in _row(row, named).items() if name not in empty} for row in rows]


def _row(row: Mapping[str, Any], named: Sequence[str]) -> dict[str, Any]:
    return {
        "split": row["split"],
        "step": row["step"],
        "rollouts": row["rollouts"],
        "reward": row["reward"],
        "min": row["reward_min"],
        "max": row["reward_max"],
        "in group": row["group_std"],
        "not finite": row["not_finite"],
        **{name.removeprefix("reward/"): row[name] for name in named},
        "tokens": None if row["completion_tokens"] is None else round(row["completion_tokens"]),
        "cut off": _percent(row["truncated"], row["rollouts"]),
        "calls": row["tool_calls"],
        "failed": share(row["tool_errors"] or 0, row["tool_calls"]) if row["tool_calls"] else None,
        "errors": row["errors"],
    }


def _percent(part: float | None, whole: float | None) -> str | None:
    return f"{(part or 0) / whole:.0%}" if whole else None


def _charts(stored: StoredRun, rows: Sequence[Mapping[str, Any]], width: int, lines: int) -> list[Any]:
    train = training(rows)
    facts = [stored.name, stored.info.trainer, count(sum(row["rollouts"] for row in rows), "rollout")]
    title = Text(" · ".join(one_line(fact, 60) for fact in facts if fact), style="bold")
    parts = [title, Text(), render_steps(train, width=width, max_lines=lines), Text()]
    shown = (
        ("spread within groups", [row["group_std"] for row in train], number),
        ("tokens", [row["completion_tokens"] for row in train], "{:,.0f}".format),
        ("cut off at the limit", [row["truncated"] / row["rollouts"] for row in train], "{:.0%}".format),
        *((label, [row.get(name) for row in train], number) for name, label in LOGGED.items()),
    )
    for name, values, written in shown:
        known = [value for value in values if value is not None]
        if len(set(known)) > 1:
            ends = f"  {written(known[0])} → {written(known[-1])}"
            parts.append(Text.assemble(f"{name:<21}", (sparkline(evenly(values, SPARKS)), "cyan"), ends))
    return parts
