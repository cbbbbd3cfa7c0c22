"""Implement `rollouts pull URL`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollout_plugins.cli.common import counted, say
from rollout_plugins.remote.transfer import pull
from rollout_plugins.system.labels import count


def configure(parser: ArgumentParser) -> None:
    where = "a run's folder, such as s3://bucket/runs/NAME or hf://datasets/OWNER/NAME"
    parser.add_argument("url", metavar="URL", help=where)
    parser.add_argument(
        "dir", metavar="DIR", nargs="?", type=Path, default=Path(), help="where to put the folder (default: here)"
    )


def run(options: Namespace) -> None:
    with counted("looking at what is there", of_bytes=True) as progress:
        folder, fetched = pull(options.url, options.dir, progress=progress)
    say(f"{count(fetched, 'file')} fetched; the run is in {folder}")
