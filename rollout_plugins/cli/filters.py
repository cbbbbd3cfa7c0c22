"""The options that say which rollouts, the same in every command that takes some."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

RUN = "a run's folder, a folder of runs, or the trainer's output_dir (the newest run in it)"
_NAMES = ("split", "step", "group", "rank", "finish", "tool", "where", "search", "order", "limit")


def add_filters(parser: ArgumentParser, *, group: bool = True) -> None:
    """Add `--split`, `--step`, … to a command."""
    chosen = parser.add_argument_group("which rollouts")
    chosen.add_argument("--split", help="train or eval")
    chosen.add_argument("--step", help="a number, last, or a range such as 10-20")
    if group:
        chosen.add_argument("--group", type=int, help="the group's number in its generation")
    chosen.add_argument("--rank", type=int, help="made by this process")
    chosen.add_argument("--finish", help="stop, length, tool_limit, error or unknown")
    chosen.add_argument("--tool", help="that called this tool")
    chosen.add_argument(
        "--errors", dest="has_error", action="store_true", default=None, help="that failed, or a call did"
    )
    chosen.add_argument("--where", help="a SQL condition over the columns, such as 'reward < 0 and calls > 1'")
    chosen.add_argument("--search", metavar="TEXT", help="with this text in a message or a call")
    chosen.add_argument("--order", help="columns to sort by, '-' for descending: reward or -judge.score,step")
    chosen.add_argument("--limit", type=int, help="at most so many")
    chosen.add_argument("--superseded", action="store_true", help="also what a resumed attempt did again")


def filters_of(options: Namespace) -> dict[str, Any]:
    """The filters a person gave, as `StoredRun.rollouts` takes them."""
    names = (*_NAMES, "has_error", "superseded")
    return {name: value for name in names if (value := getattr(options, name, None)) not in (None, False)}
