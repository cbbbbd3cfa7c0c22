"""Implement `rollouts push RUN URL`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from rollout_plugins.cli.chosen import add_allow_damaged, add_filters, add_one_run, filters_of, note_damage, opened
from rollout_plugins.cli.common import counted, say
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.remote.transfer import push
from rollout_plugins.system.labels import count


def configure(parser: ArgumentParser) -> None:
    add_one_run(parser)
    parser.add_argument(
        "url",
        metavar="URL",
        help="where the run's folder goes: s3://bucket/runs, or hf://datasets/OWNER/NAME for a dataset with a card",
    )
    parser.add_argument(
        "--public",
        action="store_true",
        help="Hub: everybody may read it; without this, a new dataset is private, and a public one is refused",
    )
    parser.add_argument(
        "--sessions",
        action="store_true",
        help="as session traces: a file for each rollout, which the Hub shows as a chat",
    )
    add_allow_damaged(parser)
    add_filters(parser)


def run(options: Namespace) -> int:
    stored = opened(options.run)
    chosen = filters_of(options, stored)
    with counted("looking at what is there", of_bytes=True) as progress:
        how = {"public": options.public, "sessions": options.sessions}
        url = push(stored, options.url, chosen, **how, progress=progress)
    say(f"{_what(stored, chosen)} in {url}")
    return note_damage(stored, allowed=options.allow_damaged)


def _what(stored: StoredRun, chosen: dict[str, Any]) -> str:
    if not chosen:
        return f"{stored.place} is"
    of = stored.count(superseded=chosen.get("superseded", False))
    return f"{stored.count(**chosen):,} of {count(of, 'rollout')} of {stored.place} are"
