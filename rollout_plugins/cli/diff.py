"""`rollouts diff RUN_A RUN_B`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from math import isclose
from typing import Any

from rich.console import Group
from rich.text import Text
from rollout_hookspecs import Rollout

from rollout_plugins.cli.chosen import RUN, check_filters, note_damage, note_pruned, opened
from rollout_plugins.cli.common import add_json, busy, console, natural, note, print_json, say, show
from rollout_plugins.content.messages import call_text
from rollout_plugins.reading.filters import PRUNED, Filters, condition
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.compare import words
from rollout_plugins.show.conversation import completion_text, prompt_text
from rollout_plugins.show.text import clean, number, one_line, shorten, signed, tone
from rollout_plugins.system.labels import count

LIMIT = 5
CHARS, AROUND = 2000, 160
_STYLES = {"removed": "red strike", "added": "green"}


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run_a", metavar="RUN_A", help=RUN)
    parser.add_argument("run_b", metavar="RUN_B", help="the run to compare it with")
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
    first, second = opened(options.run_a), opened(options.run_b)
    for stored in (first, second):
        check_filters(stored, {"split": options.split, "step": options.step})
    with busy("comparing"):
        a, b = (_by_prompt(stored, options) for stored in (first, second))
        shared = [_pair(a[key], b[key]) for key in a if key in b]
        changed = [pair for pair in shared if pair["change"] or not pair["_same"]]
        changed.sort(key=lambda pair: -abs(pair["change"] or 0.0))
        summary = {**_summary(a, b, shared), "unchanged": len(shared) - len(changed)}
        shown = [_with_texts(pair, first, second) for pair in changed[: options.limit or None]]
    note_damage(first, second)
    for stored in (first, second):
        note_pruned(stored, "cannot be compared", split=options.split, step=options.step)
    for stored, name in ((first, "not_finite_a"), (second, "not_finite_b")):
        if summary[name]:
            note(f"{stored.place}: {count(summary[name], 'reward')} NaN or infinite, left out of the means")
    if len(shown) < len(changed):
        note(f"{len(shown):,} of {len(changed):,} prompts that changed; --limit 0 for all")
    if options.json:
        print_json(
            {**summary, "prompts": [{k: v for k, v in pair.items() if not k.startswith("_")} for pair in shown]}
        )
        return
    _print(summary, shown)


def _by_prompt(stored: StoredRun, options: Namespace) -> dict[str, dict[str, Any]]:
    """Mean of the finite rewards for each prompt, and the rollout nearest to it; of several the latest."""
    where = f"{condition(Filters(split=options.split, step=options.step), 'rollouts')} and not {PRUNED}"
    far = "(case when isfinite(reward) then abs(reward - mean) else 'inf'::double end, -step, id)"
    query = (
        "select key, count(*) as n, count(*) filter (where not isfinite(reward)) as odd, any_value(mean) as reward, "  # noqa: S608 - put together from quoted literals
        f"arg_min(id, {far}) as id, arg_min(said, {far}) as said from ("
        "select md5(prompt::varchar) as key, id, step, reward, md5(completion::varchar) as said, "
        "avg(reward) filter (where isfinite(reward)) over (partition by md5(prompt::varchar)) as mean "
        f"from rollouts where {where}) group by key"
    )
    return {row["key"]: row for row in stored.sql(query).to_pylist()}


def _pair(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    known = a["reward"] is not None and b["reward"] is not None
    is_same = known and isclose(a["reward"], b["reward"], rel_tol=1e-9)  # a mean has the order of its files in it
    return {
        "reward_a": a["reward"],
        "reward_b": b["reward"],
        "change": 0.0 if is_same else b["reward"] - a["reward"] if known else None,
        "rollouts_a": a["n"],
        "rollouts_b": b["n"],
        "id_a": a["id"],
        "id_b": b["id"],
        "_same": a["said"] == b["said"],
    }


def _summary(a: dict[str, Any], b: dict[str, Any], shared: list[dict[str, Any]]) -> dict[str, Any]:
    changes = [pair["change"] for pair in shared if pair["change"] is not None]
    means = [[pair[name] for pair in shared if pair["change"] is not None] for name in ("reward_a", "reward_b")]
    return {
        "prompts_a": len(a),
        "prompts_b": len(b),
        "shared": len(shared),
        "better": sum(change > 0 for change in changes),
        "worse": sum(change < 0 for change in changes),
        "reward_a": sum(means[0]) / len(changes) if changes else None,
        "reward_b": sum(means[1]) / len(changes) if changes else None,
        "not_finite_a": sum(row["odd"] for row in a.values()),
        "not_finite_b": sum(row["odd"] for row in b.values()),
    }


def _with_texts(pair: dict[str, Any], first: StoredRun, second: StoredRun) -> dict[str, Any]:
    a, b = first.get(pair["id_a"]), second.get(pair["id_b"])
    return {**pair, "prompt": prompt_text(a), "text_a": _written(a), "text_b": _written(b)}


def _written(rollout: Rollout) -> str:
    """What the model wrote, calls included."""
    calls = [f"→ {call_text(call)}" for call in rollout.tool_calls]
    return "\n".join(part for part in (*calls, completion_text(rollout).strip()) if part)


def _print(summary: dict[str, Any], pairs: list[dict[str, Any]]) -> None:
    if not summary["shared"]:
        say(f"no prompt in both: {summary['prompts_a']:,} in the first, {summary['prompts_b']:,} in the second")
        return
    parts = [
        Text(
            f"{summary['shared']:,} prompts in both ({summary['prompts_a']:,} and {summary['prompts_b']:,}); reward "
            f"{number(summary['reward_a'])} → {number(summary['reward_b'])}; "
            f"{summary['better']:,} better, {summary['worse']:,} worse, {summary['unchanged']:,} unchanged",
            style="bold",
        )
    ]
    for pair in pairs:
        change = f"{number(pair['reward_a'])} → {number(pair['reward_b'])}  {signed(pair['change'])}"
        prompt = one_line(pair["prompt"], 160)
        parts += [Text(), Text.assemble((change, tone(pair["change"])), f"  {prompt}")]
        parts += [Text(f"{pair['id_a']} → {pair['id_b']}", style="dim"), _changes(pair)]
    width = console().width
    show(Group(*parts), sum(len(part.wrap(console(), width)) for part in parts))


def _changes(pair: dict[str, Any]) -> Text:
    """What changed, word by word: colours for a person, `[-…-]{+…+}` in a pipe; of the rest as much as to find it."""
    a, b = pair["text_a"], pair["text_b"]
    if a == b:
        several = pair["rollouts_a"] + pair["rollouts_b"] > 2
        return Text("typical answers are the same" if several else "the same answer", style="dim")
    text = Text()
    for kind, part in words(shorten(a, CHARS), shorten(b, CHARS)):
        if kind == "same":
            text.append(clean(shorten(part, AROUND)))
        elif sys.stdout.isatty():
            text.append(clean(part), _STYLES[kind])
        else:
            text.append(f"[-{clean(part)}-]" if kind == "removed" else f"{{+{clean(part)}+}}")
    return text
