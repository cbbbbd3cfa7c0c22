"""`rollouts new-plugin NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollout_plugins.cli.output import note, say
from rollout_plugins.engine.check import HOOKS
from rollout_plugins.scaffold import new_plugin

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the project, for example rollout-judge")
    parser.add_argument(
        "--hook",
        action="append",
        metavar="HOOK",
        help=f"a hook to start with, may be given again: {', '.join(HOOKS)} (default: on_rollout)",
    )
    parser.add_argument("--dir", type=Path, default=Path(), help="folder to put the project in (default: here)")


def run(options: Namespace) -> None:
    written = new_plugin(options.name, options.hook or ("on_rollout",), options.dir)
    for path in written:
        say(str(path))
    note(f"next: cd {written[0].parent} && pip install -e '.[test]' && pytest && rollouts plugins")
