"""What runs, models, batches and numbers of things are called, so that a person knows what is meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from rollout_hookspecs import Rollout, Run

NUMBERS = tuple(one.name for one in fields(Rollout) if str(one.type).removesuffix(" | None") in {"int", "float"})
"""The fields of a rollout that hold a number."""
_CHANCE = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
"""An id that nobody chose."""
_SAYS_NOTHING = re.compile(r"checkpoint(-\d+)?|model|final|last|best|latest|snapshots|[0-9a-f]{40}", re.IGNORECASE)


def run_name(run: Run) -> str:
    """The model, and the id that somebody chose or the trainer's output folder: `Qwen3-0.6B · shop`."""
    own = output_folder(run) if _CHANCE.fullmatch(run.id) else run.id
    return " · ".join(filter(None, [model_name(run.model), own])) or run.id


def unique_run_name(run: Run) -> str:
    """The same, with the id, so that two runs of one model and folder stay apart."""
    name = run_name(run)
    return name if run.id in name else f"{name} · {run.id}"


def output_folder(run: Run) -> str:
    """The name of the output folder that a run belongs to, or is in; empty when its own folder is not known."""
    if run.name or not run.dir:
        return run.name
    parents = Path(run.dir).absolute().parts[:-1]
    inside = parents[-1] in {"_rollouts", "rollouts"}
    return (parents[-2] if inside else parents[-1]).removesuffix("-rollouts") if len(parents) > 1 else ""


def model_name(model: str) -> str:
    """`Qwen3-0.6B` of `Qwen/Qwen3-0.6B`; of a path such as `out/shop/checkpoint-40` as much as says something."""
    parts = [part for part in re.split(r"[/\\]+", model) if part]
    said = next((place for place in range(len(parts) - 1, 0, -1) if not _SAYS_NOTHING.fullmatch(parts[place])), 0)
    kept = parts[said : said + 1] + [part for part in parts[said + 1 :] if re.search(r"-\d+$", part)]
    return "/".join(kept)


def count(things: int, noun: str) -> str:
    """1 rollout, 2,000 rollouts."""
    return f"{things:,} {noun}{'s' * (things != 1)}"


def format_counts(counts: Mapping[str, int], before: str = "") -> str:
    """2,000 stale, 3 left_over; with a word before each reason: 3 to trackio."""
    return ", ".join(f"{number:,} {before}{reason}" for reason, number in counts.items())


def format_not_finite(counts: Mapping[str, Mapping[str, int]]) -> str:
    """reward/correct: 7 NaN, 1 infinite; reward: 1 infinite."""
    words = {"nan": "NaN", "infinite": "infinite"}
    return "; ".join(
        f"{name}: {format_counts({words[kind]: number for kind, number in kinds.items() if number})}"
        for name, kinds in counts.items()
    )


class BatchNames:
    """What the ids of each batch begin with: the step, and for the later batches of one step also a number."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def name(self, run: Run, split: str, step: int) -> str:
        """`<run>.<attempt>.t20`, then `….t20-2`: the same on every rank, which all count alike."""
        name = f"{run.id}.{run.attempt}.{split[0]}{step}"
        self._times[name] += 1
        return name if self._times[name] == 1 else f"{name}-{self._times[name]}"
