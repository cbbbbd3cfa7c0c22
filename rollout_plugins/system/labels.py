"""Name runs, models, batches and counts for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from rollout_hookspecs import Rollout, Run

NUMBERS = tuple(field.name for field in fields(Rollout) if str(field.type).removesuffix(" | None") in {"int", "float"})
"""The fields of a rollout that contain a number."""
_GENERATED_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
"""Matches an id that nobody chose."""
_GENERIC_FOLDER = re.compile(r"checkpoint(-\d+)?|model|final|last|best|latest|snapshots|[0-9a-f]{40}", re.IGNORECASE)


def run_name(run: Run) -> str:
    """Return the model and the id that somebody chose, or the trainer's output folder: `Qwen3-0.6B · shop`."""
    own = output_folder(run) if _GENERATED_ID.fullmatch(run.id) else run.id
    return " · ".join(filter(None, [model_name(run.model), own])) or run.id


def unique_run_name(run: Run) -> str:
    """Return the name with the id, so that two runs of field model and folder have different names."""
    name = run_name(run)
    return name if run.id in name else f"{name} · {run.id}"


def output_folder(run: Run) -> str:
    """Return the name of the output folder to which a run belongs; empty if its own folder is unknown."""
    if run.name or not run.dir:
        return run.name
    parents = Path(run.dir).absolute().parts[:-1]
    inside = parents[-1] in {"_rollouts", "rollouts"}
    return (parents[-2] if inside else parents[-1]).removesuffix("-rollouts") if len(parents) > 1 else ""


def model_name(model: str) -> str:
    """Return `Qwen3-0.6B` for `Qwen/Qwen3-0.6B`; for a path such as `out/shop/checkpoint-40`, its informative end."""
    parts = [part for part in re.split(r"[/\\]+", model) if part]
    start = next((i for i in range(len(parts) - 1, 0, -1) if not _GENERIC_FOLDER.fullmatch(parts[i])), 0)
    names = parts[start : start + 1] + [part for part in parts[start + 1 :] if re.search(r"-\d+$", part)]
    return "/".join(names)


def count(things: int, noun: str) -> str:
    """Return 1 rollout, 2,000 rollouts."""
    return f"{things:,} {noun}{'s' * (things != 1)}"


def format_counts(counts: Mapping[str, int], before: str = "") -> str:
    """Return 2,000 stale, 3 left_over; with `before`, a word before each reason: 3 to trackio."""
    return ", ".join(f"{number:,} {before}{reason}" for reason, number in counts.items())


def format_not_finite(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return reward/correct: 7 NaN, 1 infinite; reward: 1 infinite."""
    words = {"nan": "NaN", "infinite": "infinite"}
    return "; ".join(
        f"{name}: {format_counts({words[kind]: number for kind, number in kinds.items() if number})}"
        for name, kinds in counts.items()
    )


class BatchNames:
    """Creates the prefix of a batch's rollout ids: the step, and a number for each later batch of the same step."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def name(self, run: Run, split: str, step: int) -> str:
        """Return `<run>.<attempt>.t20`, then `….t20-2`. All ranks count alike, so they agree on the names."""
        name = f"{run.id}.{run.attempt}.{split[0]}{step}"
        self._times[name] += 1
        return name if self._times[name] == 1 else f"{name}-{self._times[name]}"
