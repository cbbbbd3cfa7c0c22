"""Implement `rollouts check RUN…`, which reports what is wrong with a run, the most severe first."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text
from rollout_hookspecs import Finding, Verdict

from rollout_plugins.cli.chosen import RUN, add_allow_damaged, note_damage, opened
from rollout_plugins.cli.common import add_json, console, counted, note, print_json
from rollout_plugins.content.findings import as_row, evidence_command, is_at_least
from rollout_plugins.reading.checking import Checked, save
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.show.text import clean
from rollout_plugins.system.labels import count

FOUND = 4
"""The exit code if there is a finding at least as severe as `--fail-on`."""
_STYLES = {"severe": "bold red", "warning": "yellow", "info": "cyan"}


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="*", help=f"{RUN}; may be several; default: the newest run in or below this folder"
    )
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="run this check; may be repeated")
    parser.add_argument(
        "--disable", action="append", default=[], metavar="CHECK", help="do not run this check; may be repeated"
    )
    parser.add_argument(
        "--fail-on",
        choices=("warning", "severe"),
        default="severe",
        help=f"exit with {FOUND} if there is such a finding, or a more severe one (default: severe)",
    )
    parser.add_argument(
        "--save", action="store_true", help="store new findings with the run, so that viewers list them"
    )
    add_allow_damaged(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    runs = [opened(path) for path in options.run] or [opened(None)]
    results = [_check(stored, options) for stored in runs]
    if options.json:
        _print_json(runs, results)
    else:
        for stored, checked in zip(runs, results, strict=True):
            _print(stored, checked, has_heading=len(runs) > 1)
    if options.save:
        for stored, checked in zip(runs, results, strict=True):
            note(f"{stored.place}: {count(save(stored, checked.findings), 'new finding')} stored")
    damage = note_damage(*runs, allowed=options.allow_damaged)
    has_failed = any(is_at_least(finding, options.fail_on) for checked in results for finding in checked.findings)
    return FOUND if has_failed else damage


def _check(stored: StoredRun, options: Namespace) -> Checked:
    with counted(f"checking {stored.name}") as progress:
        return stored.check(
            only=options.only,
            disable=options.disable,
            progress=lambda done, total: progress(f"checking {stored.name}", done, total),
        )


# --- for programs ----------------------------------------------------------------------------------------------------


def _print_json(runs: Sequence[StoredRun], results: Sequence[Checked]) -> None:
    """Print one object, or for several runs an object that contains one for each."""
    objects = [_as_json(checked) for checked in results]
    if len(runs) == 1:
        print_json(objects[0])
    else:
        pairs = zip(runs, objects, strict=True)
        print_json({"runs": [{"run": stored.info.id, "folder": stored.place, **values} for stored, values in pairs]})


def _as_json(checked: Checked) -> dict[str, Any]:
    checks = [
        {"name": v.check, "verdict": v.verdict, "rollouts": v.rollouts, "tokens": v.tokens, "why": v.why}
        for v in checked.verdicts
    ]
    return {"findings": [as_row(finding) for finding in checked.findings], "checks": checks}


# --- for people ------------------------------------------------------------------------------------------------------


def _print(stored: StoredRun, checked: Checked, *, has_heading: bool) -> None:
    screen = console()
    if has_heading:
        screen.print(Text(f"{clean(stored.name)}: {stored.place}", style="bold"), soft_wrap=True)
    for finding in checked.findings:
        for line in _lines(finding, stored.place):
            screen.print(line, soft_wrap=not sys.stdout.isatty() or line.plain.startswith("  rollouts "))
        screen.print()
    for sentence in conclusion(checked.verdicts):
        screen.print(Text(clean(sentence)), soft_wrap=not sys.stdout.isatty())
    if has_heading:
        screen.print()


def _lines(finding: Finding, place: str) -> Iterator[Text]:
    style = _STYLES.get(finding.severity, "")
    yield Text.assemble((finding.severity, style), "  ", (clean(finding.title), "bold"), f"  [{clean(finding.check)}]")
    yield Text(f"  {clean(finding.text)}")
    if finding.advice:
        yield Text(f"  → {clean(finding.advice)}", style="dim")
    yield Text(f"  {clean(evidence_command(finding, place))}", style="cyan")


def conclusion(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield how many checks were clear, and which were unobserved and why."""
    found = sum(verdict.verdict == "found" for verdict in verdicts)
    clear = sum(verdict.verdict == "clear" for verdict in verdicts)
    parts = [f"{count(found, 'check')} found something"] if found else []
    parts += [f"{clear} of {count(len(verdicts), 'check')} clear"]
    reasons = Counter(verdict.why for verdict in verdicts if verdict.verdict == "unobserved")
    if reasons:
        named = "; ".join(f"{_named(verdicts, why)}: {why}" for why in reasons)
        parts += [f"{sum(reasons.values())} unobserved ({named})"]
    yield ", ".join(parts)
    for verdict in verdicts:
        if verdict.verdict != "unobserved" and verdict.why:
            yield f"{verdict.check}: {verdict.why}"


def _named(verdicts: Sequence[Verdict], why: str) -> str:
    return ", ".join(verdict.check for verdict in verdicts if verdict.verdict == "unobserved" and verdict.why == why)
