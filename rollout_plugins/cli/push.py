"""`rollouts push RUN URL`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rollout_plugins.cli.chosen import RUN, add_allow_damaged, add_filters, filters_of, note_damage, opened
from rollout_plugins.cli.common import counted, say
from rollout_plugins.remote.push import push


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "url",
        metavar="URL",
        help="a folder for the run's, such as s3://bucket/runs; or hf://datasets/OWNER/NAME, a dataset with a card",
    )
    parser.add_argument(
        "--public", action="store_true", help="Hub: a new dataset can be seen by everybody, not by you alone"
    )
    add_allow_damaged(parser)
    add_filters(parser)


def run(options: Namespace) -> int:
    stored = opened(options.run)
    chosen = filters_of(options, stored)
    with counted("looking at what is there") as progress:
        url = push(stored, options.url, chosen, public=options.public, progress=progress)
    say(f"{stored.dir} is in {url}")
    return note_damage(stored, allowed=options.allow_damaged)
