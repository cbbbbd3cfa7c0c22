"""Implement `rollouts replay RUN --step N --checkpoint DIR`."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from typing import Any

from rollout_plugins.cli.chosen import add_one_run, note_damage, opened
from rollout_plugins.cli.common import add_json, counted, natural, note, print_json, print_table, say
from rollout_plugins.learn.replay import CLOSE, EQUAL, SAME, Replayed, replay
from rollout_plugins.system.labels import count

_TIERS = {
    EQUAL: "bit-equal: loss and gradient norm are the numbers that were logged",
    CLOSE: "close: loss and gradient norm agree with the logged ones within 1e-5",
    SAME: "same rollouts: ids, masks, advantages and log-probabilities are the recorded ones",
}


def configure(parser: ArgumentParser) -> None:
    add_one_run(parser)
    parser.add_argument("--step", type=natural, required=True, metavar="N", help="the training step")
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="weights from before the step: checkpoint-<N - 1>"
    )
    parser.add_argument(
        "--bisect", metavar="FAULT", help="find a smallest set of rollouts with this fault: nan, or grad>10"
    )
    add_json(parser)


def run(options: Namespace) -> None:
    stored = opened(options.run)
    _hide_progress_bars()
    with counted("reading rollouts") as progress:
        replayed = replay(stored, options.step, options.checkpoint, bisect=options.bisect, progress=progress)
    note_damage(stored)
    if options.json:
        print_json(asdict(replayed))
    else:
        _say(replayed)


def _hide_progress_bars() -> None:
    """Keep what transformers says while it loads and trains out of the answer."""
    warnings.simplefilter("ignore", FutureWarning)
    with suppress(ImportError):  # which `replay` explains
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()


def _say(replayed: Replayed) -> None:
    batches = "micro-batch" if replayed.micro_batches == 1 else "micro-batches"
    say(f"step {replayed.step}: {count(len(replayed.rollouts), 'rollout')} in {replayed.micro_batches} {batches}")
    for name, value, recorded in (
        ("loss", replayed.loss, replayed.recorded_loss),
        ("gradient norm", replayed.grad_norm, replayed.recorded_grad_norm),
    ):
        say(f"  {name}: {value:.9g}" + (f", logged as {recorded:.9g}" if recorded is not None else ""))
    say(_TIERS[replayed.tier])
    for line in replayed.notes:
        note(line)
    rows: list[dict[str, Any]] = [asdict(one) for one in replayed.rollouts]
    if not replayed.fault:
        rows = [{name: value for name, value in row.items() if name != "grad_norm"} for row in rows]
    broken = [row for row in rows if not isfinite(row["loss"])]
    print_table(sorted(rows, key=lambda row: row not in broken))
    if replayed.fault:
        _say_fault(replayed)


def _say_fault(replayed: Replayed) -> None:
    if not replayed.culprits:
        say(f"no set of these rollouts has {replayed.fault}")
        return
    say(f"a smallest set with {replayed.fault}: {', '.join(replayed.culprits)}")
    if replayed.also:
        say(f"each of these has it too: {', '.join(replayed.also)}")
