"""Implement `rollouts diff RUN_A RUN_B`."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text
from rollout_hookspecs import Rollout

from rollout_plugins.cli.chosen import RUN, check_filters, note_damage, note_pruned, opened
from rollout_plugins.cli.common import add_json, busy, console, natural, note, print_json, say, show
from rollout_plugins.content.messages import call_text
from rollout_plugins.learn.comparison import Comparison, compare
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.compare import text_changes
from rollout_plugins.show.conversation import completion_text, prompt_text
from rollout_plugins.show.text import clean, number, one_line, shorten, signed, tone
from rollout_plugins.system.labels import count

LIMIT = 5
CHARS, AROUND = 2000, 160
_STYLES = {"removed": "red strike", "added": "green"}
_AT_STEP = re.compile(r"(?P<run>.+)@(?P<step>(last|-?\d+)([-:]\d*|\.\.\d*)?)")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run_a", metavar="RUN_A", help=f"{RUN}; RUN@20 for one step, RUN@10-20 for several")
    parser.add_argument("run_b", metavar="RUN_B", help="the run, or the step, to compare it with")
    parser.add_argument(
        "--by",
        default="reward",
        metavar="COLUMN",
        help="reward, a reward function, or an annotation (default: reward)",
    )
    parser.add_argument("--pass-at", type=float, metavar="X", help="compare pass rates: X or more is a pass")
    parser.add_argument("--split", help="train or eval")
    parser.add_argument("--step", help="a number, last, -2, or a range such as 10-20 (default: all)")
    parser.add_argument(
        "--limit",
        type=natural,
        default=LIMIT,
        help=f"prompts to show, most changed first; 0 for all (default: {LIMIT})",
    )
    add_json(parser)


def run(options: Namespace) -> None:
    (first, filters_a), (second, filters_b) = (_side(words, options) for words in (options.run_a, options.run_b))
    with busy("comparing"):
        comparison = compare(first, second, options.by, options.pass_at, filters_a=filters_a, filters_b=filters_b)
        rows = [row for row in comparison.table.to_pylist() if row["change"] or not row["same_typical"]]
        shown = (
            []
            if comparison.is_identical
            else [_with_texts(row, first, second) for row in rows[: options.limit or None]]
        )
    note_damage(first, second)
    for stored, filters, odd in ((first, filters_a, comparison.odd_a), (second, filters_b, comparison.odd_b)):
        note_pruned(stored, "cannot be compared", **filters)
        if odd:
            note(f"{stored.place}: {count(odd, 'reward')} NaN or infinite, left out of the means")
    if comparison.by_text:
        note("prompts are paired by their text alone: the columns that name their rows differ")
    if len(shown) < len(rows) and not comparison.is_identical:
        note(f"{len(shown):,} of {len(rows):,} prompts that changed; --limit 0 for all")
    if options.json:
        print_json({**_facts(comparison, len(rows)), "prompts": shown})
        return
    _print(comparison, len(rows), shown)


def _side(words: str, options: Namespace) -> tuple[StoredRun, dict[str, Any]]:
    """Open a run, or a run of which one step is meant."""
    at_step = None if Path(words).exists() else _AT_STEP.fullmatch(words)
    stored = opened(at_step["run"] if at_step else words)
    filters = {"split": options.split, "step": at_step["step"] if at_step else options.step}
    check_filters(stored, filters)
    return stored, filters


def _facts(comparison: Comparison, changed: int) -> dict[str, Any]:
    return {
        "column": comparison.column,
        "prompts_a": comparison.prompts_a,
        "prompts_b": comparison.prompts_b,
        "shared": len(comparison),
        "improved": comparison.improved,
        "regressed": comparison.regressed,
        "unchanged": len(comparison) - changed,
        "reward_a": comparison.value_a,
        "reward_b": comparison.value_b,
        "change": None if comparison.change is None else comparison.change._asdict(),
        "mcnemar": comparison.mcnemar,
        "identical": comparison.is_identical,
        "paired_by_text": comparison.by_text,
        "verdict": comparison.verdict,
        "not_finite_a": comparison.odd_a,
        "not_finite_b": comparison.odd_b,
    }


def _with_texts(row: Mapping[str, Any], first: StoredRun, second: StoredRun) -> dict[str, Any]:
    a, b = first.get(row["id_a"]), second.get(row["id_b"])
    return {
        "prompt_id": row["prompt_id"],
        "reward_a": row["value_a"],
        "reward_b": row["value_b"],
        "change": row["change"],
        **{name: row[name] for name in ("rollouts_a", "rollouts_b", "id_a", "id_b")},
        "prompt": prompt_text(a),
        "text_a": _written(a),
        "text_b": _written(b),
    }


def _written(rollout: Rollout) -> str:
    """Return what the model wrote, tool calls included."""
    calls = [f"→ {call_text(call)}" for call in rollout.tool_calls]
    return "\n".join(part for part in (*calls, completion_text(rollout).strip()) if part)


def _print(comparison: Comparison, changed: int, pairs: list[dict[str, Any]]) -> None:
    if not len(comparison):
        say(f"no prompt in both: {comparison.prompts_a:,} in the first, {comparison.prompts_b:,} in the second")
        return
    of = f"{count(len(comparison), 'prompt')} in both ({comparison.prompts_a:,} and {comparison.prompts_b:,})"
    if comparison.is_identical:
        say(f"{of}: {comparison.verdict}")
        return
    unchanged = len(comparison) - changed
    parts = [
        Text(
            f"{of}; {one_line(comparison.column, 40)} {number(comparison.value_a)} → {number(comparison.value_b)}; "
            f"{comparison.improved:,} improved, {comparison.regressed:,} regressed, {unchanged:,} unchanged",
            style="bold",
        ),
        Text(_verdict(comparison)),
    ]
    for pair in pairs:
        change = f"{number(pair['reward_a'])} → {number(pair['reward_b'])}  {signed(pair['change'])}"
        prompt = one_line(pair["prompt"], 160)
        parts += [Text(), Text.assemble((change, tone(pair["change"])), f"  {prompt}")]
        parts += [Text(f"{pair['id_a']} → {pair['id_b']}", style="dim"), _changes(pair)]
    width = console().width
    show(Group(*parts), sum(len(part.wrap(console(), width)) for part in parts))


def _verdict(comparison: Comparison) -> str:
    if comparison.change is None:
        return comparison.verdict
    low, high = signed(comparison.change.low), signed(comparison.change.high)
    test = "" if comparison.mcnemar is None else f", McNemar's exact test p = {comparison.mcnemar:.2g}"
    return f"{comparison.verdict}: {signed(comparison.change.value)} on average (95% from {low} to {high}{test})"


def _changes(pair: dict[str, Any]) -> Text:
    """What changed, word by word: colours for a person, `[-…-]{+…+}` in a pipe; of the rest as much as to find it."""
    a, b = pair["text_a"], pair["text_b"]
    if a == b:
        several = pair["rollouts_a"] + pair["rollouts_b"] > 2
        return Text("typical answers are the same" if several else "the same answer", style="dim")
    text = Text()
    for kind, part in text_changes(shorten(a, CHARS), shorten(b, CHARS)):
        if kind == "same":
            text.append(clean(shorten(part, AROUND)))
        elif sys.stdout.isatty():
            text.append(clean(part), _STYLES[kind])
        else:
            text.append(f"[-{clean(part)}-]" if kind == "removed" else f"{{+{clean(part)}+}}")
    return text
