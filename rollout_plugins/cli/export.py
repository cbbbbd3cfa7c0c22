"""Implement `rollouts export RUN --to TARGET`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from rollout_plugins.cli.chosen import add_allow_damaged, add_filters, add_run, filters_of, note_damage, opened
from rollout_plugins.cli.common import Progress, check_out, counted, natural, say
from rollout_plugins.cli.main import loaded
from rollout_plugins.engine.error_text import error_with_place
from rollout_plugins.engine.installed import known_sinks, options_of
from rollout_plugins.errors import RolloutPluginsError, RunError, SetupError, check_folder
from rollout_plugins.reading.export import Sent
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.store.write import write_parquet
from rollout_plugins.system.labels import count

PARQUET = {".parquet", ".pq", ""}
FORMATS = "rollout_plugins.exports"
"""Entry points of further targets: each names a module with `configure(parser)` and `run(run, options, filters)`."""
_OPTIONS_OF_FORMATS: dict[str, str] = {}
"""For each option of a further target, the names of the targets that take it."""
FLAGS = {"path": "--out", "project": "--project", "name": "--name"}
"""For each option of a sink, the option of this command."""


def configure(parser: ArgumentParser) -> None:
    add_run(parser)
    sinks, formats = ", ".join(known_sinks()), _formats()
    parser.add_argument(
        "--to",
        choices=("parquet", *formats, *known_sinks()),
        default="parquet",
        metavar="TARGET",
        help=f"parquet (the default), {', '.join([*formats, ''])}or an installed sink: {sinks}",
    )
    parser.add_argument(
        "-o",
        "--out",
        help="parquet: the file; jsonl, scout: the folder; jsonl: - for standard output; "
        "datasets: a folder, a file *.parquet, or hf://datasets/OWNER/NAME",
    )
    parser.add_argument("--force", action="store_true", help="parquet and datasets: replace the file if there is one")
    parser.add_argument(
        "--plugins",
        metavar="NAMES",
        help="sinks and datasets: plugins to format or filter what is sent, with commas: redact,mine",
    )
    parser.add_argument("--columns", help="parquet: only these, with commas between them")
    parser.add_argument(
        "--cap", type=natural, metavar="N", help="sinks: at most N of each generation, whole groups first"
    )
    parser.add_argument("--project", help="trackio, wandb: the project")
    parser.add_argument("--name", help="trackio, wandb: the run; one that exists is continued")
    parser.add_argument(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="OPTION=VALUE",
        help="sinks: any option of the sink, such as max_rows=64; may be given again",
    )
    for name, module in _modules(formats).items():
        group = parser.add_argument_group(f"--to {name}")
        module.configure(group)
        for action in group._group_actions:  # noqa: SLF001 - argparse has no public list of them
            _OPTIONS_OF_FORMATS[action.dest] = name
    parser.set_defaults(default_of=parser.get_default)
    add_allow_damaged(parser)
    add_filters(parser)


def _formats() -> dict[str, EntryPoint]:
    """Return the further targets by name, sorted."""
    return {entry.name: entry for entry in sorted(entry_points(group=FORMATS), key=lambda entry: entry.name)}


def _modules(formats: dict[str, EntryPoint]) -> dict[str, Any]:
    """Return each module of further targets once, under the names of its targets."""
    names: dict[str, list[str]] = {}
    for entry in formats.values():
        names.setdefault(entry.module, []).append(entry.name)
    return {", ".join(targets): loaded(formats[targets[0]]) for targets in names.values()}


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text!r} is not an option and its value, such as max_rows=64")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def run(options: Namespace) -> int:
    stored = opened(options.run)
    filters = filters_of(options, stored)
    formats = _formats()
    if options.to in formats:
        _check_given(options, ("columns", "cap", "project", "name", "set"))
        loaded(formats[options.to]).run(stored, options, filters)
        return note_damage(stored, allowed=options.allow_damaged)
    _check_meant(options)
    options.out = options.out and Path(options.out)
    if options.to == "parquet":
        _parquet(stored, options, filters)
    else:
        _sink(stored, options, filters)
    return note_damage(stored, allowed=options.allow_damaged)


def _check_meant(options: Namespace) -> None:
    """Refuse options that another target takes, because a user of `--plugins redact` relies on it."""
    others = ("columns",) if options.to != "parquet" else ("plugins", "cap", "project", "name", "set")
    _check_given(options, others)
    for dest, name in _OPTIONS_OF_FORMATS.items():
        if getattr(options, dest) != options.default_of(dest):
            raise RunError(f"--{dest.replace('_', '-')} is for --to {name}, not for --to {options.to}")


def _check_given(options: Namespace, others: tuple[str, ...]) -> None:
    given = [f"--{name}" for name in others if getattr(options, name) not in (None, False, [])]
    if given:
        raise RunError(f"{' and '.join(given)} cannot be given with --to {options.to}, which would not do that")


def _parquet(stored: StoredRun, options: Namespace, filters: dict[str, Any]) -> None:
    out = options.out or Path(f"{stored.dir.name}.parquet")
    if out.suffix.lower() not in PARQUET or str(out) == "-":
        raise RunError(f"{out} would hold Parquet; name it *.parquet, or write text: --to jsonl, rollouts sql --csv")
    check_out(out, force=options.force)
    columns = options.columns.split(",") if options.columns else None
    with counted("looking for rollouts") as progress:
        matching = stored.rollouts(**filters)
        written = write_parquet(out, _told(matching.tables(columns), len(matching), progress))
    say(f"{count(written, 'rollout')} in {out}")


def _told(tables: Iterator[tuple[Any, Any]], of: int, progress: Progress) -> Iterator[Any]:
    done = 0
    for _, table in tables:
        yield table
        done += table.num_rows
        progress("writing rollouts", done, of)


def _sink(stored: StoredRun, options: Namespace, filters: dict[str, Any]) -> None:
    """Send to a sink what it does not have yet. If the target is standard output, only lines go there."""
    given = {"path": str(options.out) if options.out else None, "project": options.project, "name": options.name}
    takes = options_of(options.to)
    for name, value in given.items():
        if value is not None and name not in takes:
            flags = ", ".join(flag for option, flag in FLAGS.items() if option in takes) or "no such option"
            raise SetupError(f"{FLAGS[name]} is not for {options.to}; it takes {flags}")
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | dict(options.set)
    plugins = options.plugins.split(",") if options.plugins else []
    if options.out and str(options.out) != "-":
        check_folder(options.out)
    with counted("looking for rollouts") as progress:
        of = stored.count(**filters)
        done = _sent(
            stored,
            options.to,
            cap=options.cap,
            plugins=plugins,
            options=chosen,
            progress=lambda done: progress(f"sending to {options.to}", done, of),
            **filters,
        )
    if not done.target.endswith(":-"):
        had = f"; it had {done.had:,}" if done.had else ""
        who = "the sink" if options.cap is None else "the cap"
        capped = f"; {who} left out {done.capped:,}" if done.capped else ""
        verb, silent = ("given", ", which does not say what it took") if done.unconfirmed else ("sent", "")
        say(f"{count(done.sent, 'rollout')} {verb} to {done.target}{silent}{had}{capped}")


def _sent(stored: StoredRun, to: str, **options: Any) -> Sent:
    try:
        return stored.export(to, **options)
    except (RolloutPluginsError, OSError):
        raise
    except Exception as error:
        raise RunError(f"{to} raised {error_with_place(error)}") from error
