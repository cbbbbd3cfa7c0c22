"""Implement `rollouts rescore RUN my_rewards.py:judge`."""

from __future__ import annotations

import math
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rollout_plugins.cli.chosen import add_filters, add_one_run, filters_of, note_damage, note_pruned, opened
from rollout_plugins.cli.common import add_json, counted, natural, note, print_json, say
from rollout_plugins.errors import RunError
from rollout_plugins.learn.disagreement import Disagreement, Verifiers, disagreement
from rollout_plugins.learn.rescore import Rescored, rescore
from rollout_plugins.learn.reward_calls import count_errors
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.conversation import prompt_text
from rollout_plugins.show.text import number, one_line, signed
from rollout_plugins.system.labels import count

LIMIT = 5
MOST_ERRORS = 3


def configure(parser: ArgumentParser) -> None:
    add_one_run(parser)
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="a TRL reward function, or MODULE:FUNCTION")
    parser.add_argument("--as", dest="name", help="what to store the scores under (default: the function's name)")
    parser.add_argument(
        "--against", metavar="NAME", help="the reward function that it replaces, or reward for all (default: guessed)"
    )
    parser.add_argument(
        "--group", dest="by_group", action="store_true", help="call the function with one whole group at a time"
    )
    parser.add_argument("--workers", type=natural, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--again", action="store_true", help="score again what was scored before")
    parser.add_argument("--list", type=natural, default=LIMIT, metavar="N", help=f"disagreements (default: {LIMIT})")
    add_filters(parser, group=False)
    add_json(parser)


def run(options: Namespace) -> None:
    stored = opened(options.run)
    filters = filters_of(options, stored)
    done = [0, 0]
    try:
        with counted("rollouts") as progress:

            def tell(finished: int, of: int) -> None:
                done[:] = [finished, of]
                progress("rollouts", finished, of)

            found = rescore(
                stored, options.function, name=options.name, against=options.against, by_group=options.by_group,
                workers=options.workers, again=options.again, progress=tell, **filters,
            )  # fmt: skip
    except KeyboardInterrupt:
        note(f"stopped after {done[0]:,} of {count(done[1], 'rollout')}; the same command continues there")
        raise
    report = disagreement(found, options.list)
    note_damage(stored)
    note_pruned(stored, "were not scored", **filters)
    if options.json:
        print_json(_facts(found, report))
        return
    for line in _lines(stored, found, report):
        say(line)


def _facts(found: Rescored, report: Disagreement) -> dict[str, Any]:
    errors = dict(count_errors(found.table["error"].to_pylist()))
    facts = {
        "name": found.name, "against": found.against, "formula": str(found.formula), "seconds": found.seconds,
        "cached": found.cached, "metrics": found.metrics, "errors": errors,
    }  # fmt: skip
    verifiers = report.verifiers
    said = {**asdict(report)}
    if verifiers is not None:
        said["verifiers"] = {
            **asdict(verifiers),
            "false_negatives": verifiers.false_negatives._asdict(),
            "false_positives": verifiers.false_positives._asdict(),
        }
    return {**facts, **said}


def _lines(stored: StoredRun, found: Rescored, report: Disagreement) -> Iterator[str]:
    role = "in place of all rewards" if found.against == "reward" else f"in place of {found.against}"
    cached = f", {found.cached:,} of them known from before" if found.cached else ""
    yield f"{found.name}, {role}: {count(report.scored, 'rollout')}{cached}; {found.seconds:,.1f} s in the function"
    for error, times in count_errors(found.table["error"].to_pylist())[:MOST_ERRORS]:
        yield f"  failed        {count(times, 'rollout')}: {error}"
    if report.unscored:
        yield f"  not scored    {count(report.unscored, 'rollout')}"
    for name, value in found.metrics.items():
        yield f"  {one_line(name, 13):<13} {number(value)}"
    if not report.scored:
        yield "  no rollout has both an old and a new score, so there is nothing to compare"
        return
    yield f"  mean          {number(report.old_mean)} → {number(report.new_mean)}"
    if report.verifiers is not None:
        yield f"  if {found.name} is right, {found.against} errs:"
        yield from _verifier_lines(found, report.verifiers)
    yield from _group_lines(report)
    if found.differing:
        differing = count(found.differing, "recorded advantage")
        yield f"  note          {differing} differ from {found.formula}; both sides are computed by that formula"
    if found.unknown:
        lacking = count(found.unknown, "rollout")
        yield f"  note          {lacking} without a recorded advantage; computed for both sides"
    yield from _reading_list(stored, report)
    columns = ", ".join(f"{found.name}.{column}" for column in ("value", "reward", "advantage"))
    yield f"stored as {columns} ({found.formula})"


def _verifier_lines(found: Rescored, verifiers: Verifiers) -> Iterator[str]:
    for share, total, kind, what in (
        (verifiers.false_negatives, verifiers.right, "right", "    it fails"),
        (verifiers.false_positives, verifiers.wrong, "wrong", "    it passes"),
    ):
        if total:
            interval = f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"
            answers = f"the {total:,} answers that {found.name} calls {kind}"
            yield f"  {what:<13} {interval} of {answers}"


def _group_lines(report: Disagreement) -> Iterator[str]:
    if not report.groups:
        yield "  groups        none has two rollouts, so there are no advantages to compare"
        return
    flips = f"{report.fell:,} turn from positive to negative, {report.rose:,} the other way"
    yield f"  advantages    {report.same_sign:.0%} keep their sign; {flips}"
    both, groups = count(report.keep_spread, "group"), count(report.groups, "group")
    yield f"  best answer   changes in {report.best_changed:,} of {both} with spread in both"
    yield (
        f"  spread        {report.lose_spread:,} of {groups} lose it, {report.gain_spread:,} gain it, "
        f"{report.without_spread:,} have none either way"
    )
    if report.correlation is not None:
        yield f"  ranks         correlate by {report.correlation:.2f} within groups (Kendall's tau)"


def _reading_list(stored: StoredRun, report: Disagreement) -> Iterator[str]:
    if not report.largest:
        yield "no advantage changes"
        return
    yield "the largest disagreements:"
    for row in report.largest:
        try:
            prompt = one_line(prompt_text(stored.get(row["id"])), 60)
        except RunError:  # it was readable a moment ago; the list is still of use
            prompt = ""
        before, after = row["old_advantage"], row["new_advantage"]
        change = f"{_value(row['old_value'])} → {_value(row['value'])}"
        yield f"  {change:<14} advantage {signed(before)} → {signed(after)}  {prompt}"
        yield f"    {shlex.join(['rollouts', 'show', stored.place, '--id', row['id']])}"


def _value(value: float | None) -> str:
    return "none" if value is None or math.isnan(value) else number(value)
