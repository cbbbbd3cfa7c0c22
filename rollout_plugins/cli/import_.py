"""Implement `rollouts import --from FORMAT PATH`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollout_plugins.cli.common import add_json, counted, note, print_json, say
from rollout_plugins.errors import check_folder
from rollout_plugins.shapes.importing import FORMATS, import_rollouts
from rollout_plugins.system.labels import count


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the file or folder the other library wrote")
    parser.add_argument("--from", dest="format", required=True, choices=FORMATS, help="which library wrote it")
    parser.add_argument(
        "-o", "--out", default=".", help="folder for the run, which becomes OUT/rollouts/<name> (default: here)"
    )
    parser.add_argument("--split", choices=("train", "eval"), help="for formats that do not say")
    add_json(parser)


def run(options: Namespace) -> None:
    check_folder(Path(options.out))
    with counted("reading") as progress:
        report = import_rollouts(options.format, options.path, options.out, split=options.split, progress=progress)
    if options.json:
        facts = {
            "dir": str(report.dir),
            "rollouts": report.rollouts,
            "skipped": report.skipped,
            "marked": report.marked,
        }
        facts["lacks"] = report.lacks
        print_json(facts)
        return
    say(f"{count(report.rollouts, 'rollout')} in {report.dir}")
    for reason, skipped in report.skipped.items():
        note(f"skipped: {skipped:,} {reason}")
    if report.marked:
        note(f"{report.marked:,} values did not fit their fields; rollouts say so in their marks")
    for lack in report.lacks:
        note(f"not in this format: {lack}")
