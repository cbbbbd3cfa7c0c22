"""Implement `rollouts doctor`, which checks what matters before a long run and says what to do."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from rollout_plugins.cli.chosen import DAMAGED, add_allow_damaged
from rollout_plugins.cli.common import add_json, busy, console, print_json, print_table
from rollout_plugins.content.findings import evidence_command
from rollout_plugins.errors import RolloutPluginsError
from rollout_plugins.reading.find_runs import find_all_runs
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.system.labels import count, format_counts
from rollout_plugins.system.remote_runs import is_url

DISTRIBUTION = "rollout-plugins"
NEWEST_TRL = (1, 16)
LOW_SPACE, NO_SPACE = 20 * 2**30, 2**30
SECONDS = 2.0
COLUMNS = ("tokenizer", "tools", "prefix-preserving", "parses answers", "ends its turn", "end of turn")
DAMAGE = "damaged"
_STYLE = {"ok": "green", "note": "cyan", "warn": "yellow", DAMAGE: "red", "fail": "red"}


@dataclass(frozen=True, slots=False)
class Check:
    """The result of one check."""

    check: str
    status: str
    """`ok`, `note`, `warn`, `damaged` or `fail`."""
    found: str
    do: str = ""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "dir",
        metavar="FOLDER",
        nargs="?",
        type=Path,
        default=Path(),
        help="where the run will be, or is, also as a URL (default: here)",
    )
    parser.add_argument("--tokenizer", nargs="+", default=[], metavar="NAME_OR_PATH", help="chat templates to check")
    parser.add_argument("--offline", action="store_true", help="do not use the network")
    add_allow_damaged(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    with busy("looking"):
        found = [
            *versions_checks(),
            *trl_checks(),
            *folder_checks(options.dir),
            *run_checks(options.dir),
            *sinks_checks(offline=options.offline),
            *plugins_checks(),
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
    if any(check.status == "fail" for check in found):
        return 1
    return DAMAGED if any(check.status == DAMAGE for check in found) and not options.allow_damaged else 0


def _print(checks: list[Check]) -> None:
    if not sys.stdout.isatty():
        print_table([vars(check) for check in checks])
        return
    table = Table.grid(padding=(0, 2))
    for check in checks:
        said = Text(check.found)
        if check.do:
            said.append(f"\n→ {check.do}", style="dim")
        table.add_row(Text(check.status, style=_STYLE[check.status]), Text(check.check, style="bold"), said)
    console().print(table)


def _print_templates(templates: list[dict[str, object]]) -> None:
    print_table(templates, COLUMNS)
    for row in templates:
        todo = row["do"]
        for advice in todo if isinstance(todo, list) else []:
            console().print(f"{row['tokenizer']}: {advice}", markup=False)


def versions_checks() -> Iterator[Check]:
    """Check Python and all packages that this package names against the oldest supported versions."""
    python = ".".join(map(str, sys.version_info[:3]))
    supported = sys.version_info >= (3, 10)
    yield Check("Python", "ok" if supported else "fail", python, "" if supported else "use Python 3.10 or newer")
    requirements = _requirements()
    missing = {name: extra for name, (_, extra) in requirements.items() if extra and installed(name) is None}
    for name, (least, _) in requirements.items():
        if name not in missing:
            yield _version(name, least)
    if missing:
        extras = ",".join(sorted(set(missing.values())))
        what = f"pip install 'rollout-plugins[{extras}]', or those of them that you want"
        yield Check("extras", "note", f"not installed: {', '.join(missing)}", what)


def _requirements() -> dict[str, tuple[str, str]]:
    """Return for each package its oldest version and the extra that installs it, from the installed metadata.

    Extras are sorted, so the last one is not `all`, which installs everything.
    """
    requirements: dict[str, tuple[str, str]] = {}
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        required = []
    for line in required:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[.*?\])?\s*\(?[^;]*?>=\s*([0-9.]+)", line)
        extra = re.search(r"extra\s*==\s*['\"](\w+)", line)
        if match and match[1] != DISTRIBUTION and (extra is None or extra[1] not in {"dev", "docs"}):
            requirements[match[1].lower()] = (match[2], extra[1] if extra else "")
    return requirements


def _version(name: str, least: str) -> Check:
    found = installed(name)
    if found is None:
        return Check(name, "fail", "not installed", f"pip install '{name}>={least}'")
    if numbers(found) < numbers(least):
        return Check(name, "fail", f"{found}; at least {least} is needed", f"pip install -U '{name}>={least}'")
    if name == "trl" and numbers(found)[:2] > NEWEST_TRL:
        newest = ".".join(map(str, NEWEST_TRL))
        return Check(name, "warn", f"{found}; tested up to {newest}", "look at a short run first: rollouts stats")
    return Check(name, "ok", found)


def installed(name: str) -> str | None:
    """Return the version of a package without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """Return `1.16.0rc1` as (1, 16, 0)."""
    return tuple(int(piece) for piece in re.findall(r"\d+", version.partition("+")[0])[:3])


def trl_checks() -> Iterator[Check]:
    """Check for TRL versions whose own `log_completions` ends training over ordinary tool calls: 1.15 and later."""
    version = installed("trl")
    if version is not None and numbers(version) >= (1, 15):
        hazard = (
            f"log_completions=True of TRL {version} ends training when a tool call has no arguments, or calls differ"
        )
        yield Check(
            "log_completions", "note", hazard, "leave it off: the callback keeps more, the console sink prints it"
        )


def folder_checks(path: Path) -> Iterator[Check]:
    """Check that rollouts can be written to the folder, and for how long. A URL is a copy of a local folder."""
    if is_url(path):
        return
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            pass
    except OSError as error:
        advice = "choose another output_dir, or dir=… of the callback"
        yield Check("write access", "fail", f"{there}: {error.strerror}", advice)
    else:
        yield Check("write access", "ok", str(there))
    free = shutil.disk_usage(there).free
    status = "fail" if free < NO_SPACE else "warn" if free < LOW_SPACE else "ok"
    advice = "a million rollouts of 2 kB take about 1 GB; images and tokens=True much more" if status != "ok" else ""
    yield Check("free space", status, f"{free / 2**30:,.0f} GB", advice)


def run_checks(path: Path) -> Iterator[Check]:
    """Check that existing runs can be read, to the last page of each file."""
    if not is_url(path) and not path.exists():
        return
    try:
        folders = find_all_runs(path)
    except RolloutPluginsError as error:
        if is_url(path) or "no run found" not in str(error):
            yield Check("runs", "fail", str(error))
        return
    for folder in folders:
        try:
            yield from _run_checks(StoredRun(folder))
        except RolloutPluginsError as error:
            yield Check(folder.name, "fail", str(error))


def _run_checks(run: StoredRun) -> Iterator[Check]:
    run.health.verify()
    total, damage = len(run), run.health.unreadable
    for line in damage:
        yield Check(run.info.id, DAMAGE, line, "the rest of the run can be read; keep a copy")
    for line in (*run.health.contradictions, *run.health.absent):
        yield Check(run.info.id, "note", line)
    notes = {
        "lost": format_counts(run.health.drops),
        "not trained on": format_counts(run.health.untrained),
        "not sent": format_counts(run.health.unsent, "to "),
    }
    for what, counts in notes.items():
        if counts:
            yield Check(run.info.id, "note", f"{what}: {counts}")
    if not damage:
        yield from findings_checks(run)
    yield Check(run.info.id, "ok" if not damage else "note", f"{total:,} rollouts in {run.place}")


def findings_checks(run: StoredRun) -> Iterator[Check]:
    """What the checks find in a run, and the command that says which of them could not look."""
    checked = run.check()
    for finding in checked.findings:
        status = "note" if finding.severity == "info" else "warn"
        yield Check(run.info.id, status, finding.text, evidence_command(finding, run.place))
    unobserved = sum(verdict.verdict == "unobserved" for verdict in checked.verdicts)
    if unobserved:
        more = f"{count(unobserved, 'check')} had nothing to look at"
        yield Check(run.info.id, "note", more, f"rollouts check {shlex.quote(run.place)} says what they need")


def sinks_checks(*, offline: bool) -> Iterator[Check]:
    """Check that the services behind the sinks can be reached, and say what happens if not."""
    if installed("wandb") is not None:
        yield _wandb(offline=offline)
    if installed("trackio") is not None:
        if os.environ.get("TRACKIO_SPACE_ID") and not offline:
            yield _reach("trackio", "huggingface.co", "rollouts wait on disk; `rollouts export` sends them later")
        else:
            yield Check("trackio", "ok", "local; `trackio show` opens it")


def _wandb(*, offline: bool) -> Check:
    mode = os.environ.get("WANDB_MODE", "online")
    if mode in {"offline", "disabled"}:
        later = "`wandb sync` sends it later" if mode == "offline" else "nothing is written"
        return Check("wandb", "note", f"WANDB_MODE={mode}; {later}")
    if offline:
        return Check("wandb", "note", "not asked")
    url = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    port = url.port or (80 if url.scheme == "http" else 443)
    return _reach("wandb", url.hostname or "", "set WANDB_MODE=offline, and `wandb sync` later", port)


def _reach(name: str, host: str, advice: str, port: int = 443) -> Check:
    try:
        with socket.create_connection((host, port), timeout=SECONDS):
            return Check(name, "ok", f"{host} answers")
    except OSError as error:
        return Check(name, "warn", f"{host} cannot be reached: {error}", advice)


def plugins_checks() -> Iterator[Check]:
    """Check for plugins that would not run, and say why."""
    from rollout_plugins.cli.plugins import listing

    try:
        rows = listing()
    except RolloutPluginsError as error:
        yield Check("plugins", "fail", str(error))
        return
    for row in rows:
        if row["status"] not in {"active", "available"}:
            known = row["status"] == "disabled"
            yield Check(f"plugin {row['name']}", "note" if known else "warn", f"{row['status']}: {row['reason']}")
    active = ", ".join(row["name"] for row in rows if row["status"] == "active")
    yield Check("plugins", "ok", f"active: {active or 'none'}")
