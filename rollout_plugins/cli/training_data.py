"""Implement `rollouts export RUN --to sft | dpo | kto | prompts`, which writes datasets for TRL's trainers."""

from __future__ import annotations

import tempfile
from argparse import ArgumentTypeError, Namespace, _ActionsContainer
from pathlib import Path
from typing import Any

from rollout_plugins.cli.common import counted, natural, note, say
from rollout_plugins.errors import RunError
from rollout_plugins.learn.dataset_card import rendering_lines
from rollout_plugins.learn.exported import Exported
from rollout_plugins.learn.held_out import read_prompt_ids
from rollout_plugins.learn.training_data import export_training_data
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.system.labels import count

HUB = "hf://"


def configure(parser: _ActionsContainer) -> None:
    parser.add_argument("--by", default="reward", help="the column that scores rollouts (default: reward)")
    parser.add_argument(
        "--threshold", type=_number, metavar="X", help="sft: the least score; kto: the least score labelled true"
    )
    parser.add_argument("--margin", type=_number, default=0.0, metavar="X", help="dpo: how much better a winner is")
    parser.add_argument(
        "--pairs", choices=("best", "all"), default="best", help="dpo: one pair for each group (default), or all"
    )
    parser.add_argument(
        "--whole", action="store_true", help="dpo, kto: keep completions whole, although results of tools are trained"
    )
    parser.add_argument("--sample", type=natural, metavar="N", help="at most N rows, drawn at random")
    parser.add_argument("--seed", type=natural, default=0, help="the seed of --sample (default: 0)")
    parser.add_argument(
        "--exclude", metavar="FILE", help="held-out prompts: Parquet, JSON lines or text with prompt ids"
    )
    parser.add_argument("--include-evaluated", action="store_true", help="also prompts that the run was evaluated on")
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="report rows that it renders to other token ids than were recorded"
    )
    parser.add_argument("--public", action="store_true", help="-o hf://…: everybody may read the dataset")


def run(stored: StoredRun, options: Namespace, filters: dict[str, Any]) -> None:
    """Export the rollouts, and report what was written, what was left out, and what a trainer needs."""
    _check_given(options)
    dest = options.out or f"{stored.dir.name}-{options.to}"
    if not dest.startswith(HUB):
        _say(_export(stored, Path(dest), options, filters))
        return
    from rollout_plugins.remote.transfer import send_dataset

    with tempfile.TemporaryDirectory(prefix="rollouts-") as folder:
        exported = _export(stored, Path(folder), options, filters)
        with counted("sending", of_bytes=True) as progress:
            url = send_dataset(Path(folder), dest, public=options.public, force=options.force, progress=progress)
    exported.path, exported.card = Path(exported.path.name), Path(exported.card.name)
    _say(exported, where=url)


def _check_given(options: Namespace) -> None:
    """Refuse an option that the kind of dataset does not use."""
    kinds = {
        "by": ("sft", "dpo", "kto"), "threshold": ("sft", "kto"), "margin": ("dpo",), "pairs": ("dpo",),
        "whole": ("dpo", "kto"), "tokenizer": ("sft", "dpo", "kto"),
    }  # fmt: skip
    for name, users in kinds.items():
        if options.to not in users and getattr(options, name) != options.default_of(name):
            raise RunError(f"--{name} is for --to {' and --to '.join(users)}, not for --to {options.to}")
    if options.public and not (options.out or "").startswith(HUB):
        raise RunError("--public is for a dataset on the Hub: -o hf://datasets/OWNER/NAME")


def _export(stored: StoredRun, dest: Path, options: Namespace, filters: dict[str, Any]) -> Exported:
    with counted("reading rollouts") as progress:
        return export_training_data(
            stored,
            options.to,
            dest,
            by=options.by,
            threshold=options.threshold,
            margin=options.margin,
            pairs=options.pairs,
            sample=options.sample,
            seed=options.seed,
            whole=options.whole,
            held_out=read_prompt_ids(Path(options.exclude)) if options.exclude else (),
            include_evaluated=options.include_evaluated,
            tokenizer=options.tokenizer,
            plugins=options.plugins.split(",") if options.plugins else [],
            force=options.force,
            progress=progress,
            **filters,
        )


def _say(exported: Exported, where: str = "") -> None:
    say(f"{count(exported.rows, 'row')} in {where or exported.path}, from {count(exported.candidates, 'rollout')}")
    for reason, number in exported.left_out.most_common():
        say(f"  left out: {number:,} {reason}")
    if exported.kind == "sft":
        say("train with SFTConfig(assistant_only_loss=True), or what tools answered is trained too")
    if exported.kind == "kto":
        good, bad = exported.labels[True], exported.labels[False]
        weights = " or ".join(f"{name}={value:g}" for name, value in exported.advised_weights.items() if value != 1.0)
        say(f"{good:,} labelled true, {bad:,} false{f'; train with {weights}' if weights else ''}")
    if exported.moved_turns:
        say(f"{count(exported.moved_turns, 'row')} with shared turns moved into the prompt; --whole keeps completions")
    if exported.kind != "prompts":
        for line in filter(None, rendering_lines(exported)):
            note(line)
    say(f"how rows were chosen, and how to train: {exported.card}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number, such as 0.5") from None
