"""`rollouts doctor`: what to know before a long run."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollout_plugins.cli import checks
from rollout_plugins.cli.output import add_json, busy, console, print_json, print_table, show, table_of

COLUMNS = ("tokenizer", "tools", "prefix-preserving", "parses answers", "ends its turn", "end of turn")
_STYLE = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "red"}


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "dir", nargs="?", type=Path, default=Path(), help="where the run will be, or is (default: here)"
    )
    parser.add_argument("--tokenizer", nargs="+", default=[], metavar="NAME_OR_PATH", help="chat templates to check")
    parser.add_argument("--offline", action="store_true", help="ask nothing of the network")
    add_json(parser)


def run(options: Namespace) -> int:
    with busy("looking"):
        found = [
            *checks.versions(),
            *checks.completions_logging(),
            *checks.folder(options.dir),
            *checks.stored(options.dir),
            *checks.sinks(offline=options.offline),
            *checks.plugins(),
        ]
        templates = []
        if options.tokenizer:
            from rollout_plugins.cli import chat_templates

            templates = [chat_templates.facts(name) for name in options.tokenizer]
    if options.json:
        print_json({"checks": [vars(check) for check in found], "tokenizers": templates})
    else:
        _print(found)
        if templates:
            _print_templates(templates)
    return int(any(check.status == "fail" for check in found))


def _print(found: list[checks.Check]) -> None:
    if not sys.stdout.isatty():
        print_table([vars(check) for check in found])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for check in found:
        said = Text(check.found)
        if check.do:
            said.append(f"\n→ {check.do}", style="dim")
        table.add_row(Text(check.status, style=_STYLE[check.status]), Text(check.check, style="bold"), said)
    console().print(table)


def _print_templates(templates: list[dict[str, object]]) -> None:
    if sys.stdout.isatty():
        show(table_of(templates, COLUMNS), len(templates) + 3)
    else:
        print_table(templates, COLUMNS)
    for row in templates:
        todo = row["do"]
        for advice in todo if isinstance(todo, list) else []:
            console().print(f"{row['tokenizer']}: {advice}", markup=False)
