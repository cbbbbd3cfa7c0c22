"""Implement `rollouts prompts RUN …`."""

from __future__ import annotations

import math
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_plugins.cli.chosen import RUN, check_filters, note_damage, note_pruned, opened
from rollout_plugins.cli.common import add_json, busy, check_out, console, natural, note, print_json, print_table, say
from rollout_plugins.learn.prompts import BANDS, Prompts, prompts_of
from rollout_plugins.learn.train_rows import question, train_table
from rollout_plugins.show.chart import sparkline
from rollout_plugins.show.text import one_line
from rollout_plugins.system.labels import count

LIMIT = 20
SPARE = ("tool failures", "reward", "tokens", "steps", "solved at", "trend")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help=f"{RUN}; several runs are taken together, in this order; default: the newest run in or below this folder",
    )
    parser.add_argument(
        "--by",
        default="reward",
        metavar="COLUMN",
        help="reward, a reward function, or an annotation (default: reward)",
    )
    parser.add_argument(
        "--pass-at", type=float, metavar="X", help="a value of X or more is a pass (default: 1, if all are 0 or 1)"
    )
    parser.add_argument(
        "--band",
        type=_band,
        metavar="LOW:HIGH",
        help=f"only prompts whose pass rate is in these bounds, such as 0.2:0.8; or one of {', '.join(BANDS)}",
    )
    parser.add_argument("--split", help="train or eval (default: train)")
    parser.add_argument("--step", help="a number, last, -2, or a range such as 10-20 (default: all)")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="write the prompts to this Parquet file, a train_dataset for TRL"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument("--limit", type=natural, default=LIMIT, help=f"prompts to list; 0 for all (default: {LIMIT})")
    add_json(parser)


def run(options: Namespace) -> None:
    if options.to is not None:
        check_out(options.to, force=options.force)
    filters = {"split": options.split, "step": options.step}
    stored = [opened(path) for path in options.runs] or [opened(None)]
    for one in stored:
        check_filters(one, filters)
    with busy("reading prompts"):
        prompts = prompts_of(stored, options.by, options.pass_at, **filters)
    note_damage(*stored)
    for one in stored:
        note_pruned(one, "are counted as one prompt", **filters)
    if options.band is not None and prompts.criterion.bound is None:
        note(f"--band needs a pass rate: {prompts.criterion}")
    chosen = prompts if options.band is None else _in_band(prompts, options.band)
    if options.to is not None:
        _write(chosen, options.to)
    if options.json:
        print_json({**_summary(prompts), "prompts": [_plain(row) for row in chosen.table.to_pylist()]})
    else:
        _print(prompts, chosen, options.limit, stored[-1].place)


def _band(text: str) -> tuple[float, float] | str:
    if text in BANDS:
        return text
    low, _, high = text.partition(":")
    try:
        bounds = (float(low or 0), float(high or 1))
    except ValueError:
        bounds = (math.nan, math.nan)
    if not 0 <= bounds[0] <= bounds[1] <= 1:
        raise ArgumentTypeError(f"{text!r} is not LOW:HIGH, such as 0.2:0.8, and none of {', '.join(BANDS)}")
    return bounds


def _in_band(found: Prompts, band: tuple[float, float] | str) -> Prompts:
    return found.in_band(band) if isinstance(band, str) else found.between(*band)


def _write(chosen: Prompts, path: Path) -> None:
    import pyarrow.parquet as pq

    table, left_out = train_table(chosen.table)
    pq.write_table(table, path)
    note(f"{path}: {count(table.num_rows, 'prompt')}, {len(table.column_names)} columns")
    if left_out:
        note(f"{count(left_out, 'prompt')} with images left out; join them to the dataset by prompt_id")


def _summary(found: Prompts) -> dict[str, Any]:
    return {
        "prompts": len(found),
        "pass": {"column": found.criterion.column, "bound": found.criterion.bound},
        "criterion": str(found.criterion),
        "bands": found.bands,
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table for a program; the messages themselves are in the file that --to writes."""
    left = {name: value for name, value in row.items() if name not in {"prompt", "columns", "prompt_is_text"}}
    return {**left, "prompt": question(row["prompt"])}


def _print(found: Prompts, chosen: Prompts, limit: int, place: str) -> None:
    attempts, passed = (sum(found.table[name].to_pylist()) for name in ("attempts", "passes"))
    rate = f", {passed / attempts:.0%} passed" if found.criterion.bound is not None and attempts else ""
    head = f"{count(len(found), 'prompt')}, {count(attempts, 'attempt')}{rate}; {found.criterion}"
    bands = " · ".join(f"{band} {number:,}" for band, number in found.bands.items())
    for line in filter(None, (head, bands)):  # in a pipe, only the table is printed
        (say if sys.stdout.isatty() else note)(line)
    rows = [_readable(row) for row in chosen.table.slice(0, limit or None).to_pylist()]
    if not rows:
        note("no prompt is in that band")
        return
    empty = {name for name in rows[0] if all(row[name] in {None, ""} for row in rows)}
    names = [name for name in rows[0] if name not in empty]
    if sys.stdout.isatty():
        room = max(20, console().width - 62)
        rows = [{**row, "prompt": one_line(row["prompt"], room)} for row in rows]
    print_table(rows, names, spare=SPARE)
    if len(rows) < len(chosen):
        note(f"{len(rows):,} of {len(chosen):,} prompts, least solved first; --limit 0 for all")
    example = shlex.join(["rollouts", "show", place, "--history", chosen.table["last_rollout"][0].as_py()])
    note(f"the answers to the first of them, step by step: {example}")


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    rate = row["pass_rate"]
    trend = [value for value in row["trend"] or () if value is not None]
    return {
        "prompt_id": row["prompt_id"],
        "band": row["band"],
        "passed": None if rate is None else f"{rate:.0%}",
        "95%": None if rate is None else f"{row['pass_low']:.0%}-{row['pass_high']:.0%}",
        "attempts": row["attempts"],
        "reward": row["reward_mean"],
        "steps": row["steps_seen"],
        "solved at": row["first_solved"],
        "trend": sparkline(trend) if len(trend) > 1 else "",
        "tokens": None if row["completion_tokens"] is None else round(row["completion_tokens"]),
        "tool failures": f"{row['failed_calls'] / row['tool_calls']:.0%}" if row["tool_calls"] else None,
        "prompt": question(row["prompt"]),
    }
