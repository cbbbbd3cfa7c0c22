"""Implement `rollouts prune RUN --keep CONDITION`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rollout_plugins.cli.chosen import add_allow_damaged, add_one_run, note_damage, opened
from rollout_plugins.cli.common import counted, say
from rollout_plugins.remote.folders import size_of
from rollout_plugins.remote.pruning import check_keep, prune
from rollout_plugins.remote.transfer import check_here


def configure(parser: ArgumentParser) -> None:
    add_one_run(parser)
    example = "step %% 100 = 0 or reward < 0 or split = 'eval'"
    parser.add_argument(
        "--keep", required=True, metavar="SQL", help=f"a condition over the columns, such as {example}"
    )
    parser.add_argument("--yes", action="store_true", help="do it; without this, only say what would be removed")
    add_allow_damaged(parser)


def run(options: Namespace) -> int:
    stored = opened(options.run)
    check_here(stored)
    check_keep(stored, options.keep)
    with counted("pruning") as progress:
        found = prune(stored, options.keep, progress=progress, really=options.yes)
    which = f"the text of {found.rollouts:,} of {found.of:,} rollouts"
    if not found.rollouts:
        say("nothing to remove: what is not kept has lost its text already, or is in a journal still")
    elif options.yes:
        # A small file may grow, because its marks mention the pruning.
        freed = f"{size_of(found.bytes)} freed" if found.bytes > 0 else "too short to free any space"
        say(f"{which} is gone ({freed}); their numbers are still there")
    else:
        say(f"this would remove {which}, about {size_of(found.bytes)}, and keep their numbers; "
            "say it again with --yes to do it")  # fmt: skip
    return note_damage(stored, allowed=options.allow_damaged)
