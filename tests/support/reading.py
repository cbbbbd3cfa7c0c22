"""Runs on disk for the reader's tests, written by the real writer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_hookspecs import Rollout, Run, ToolCall

from rollout_plugins.store.write import RunWriter
from rollout_plugins.testing import make_rollout

REWARDS = ("correct", "format")


def one(step: int, index: int, *, run: str = "r1", attempt: int = 1, rank: int = 0, **fields: Any) -> Rollout:
    """A rollout of step `step`; two make a group, and both ask the same question in every step."""
    group = index // 2
    number = float(step + index)
    defaults: dict[str, Any] = {
        "id": f"{run}.{attempt}.t{step}.{rank}.{index}",
        "run_id": run,
        "attempt": attempt,
        "step": step,
        "generation": step,
        "rank": rank,
        "index": index,
        "group": group,
        "group_size": 2,
        "prompt": ({"role": "user", "content": f"question {group}"},),
        "completion": ({"role": "assistant", "content": f"Answer {index} of step {step}."},),
        "tool_calls": (),
        "rewards": {"correct": number, "format": None},
        "reward": number,
    }
    return make_rollout(**{**defaults, **fields})


def called(name: str, status: str = "ok", **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, status=status, result="…")


def writer(folder: Path, run: str = "r1", **fields: Any) -> RunWriter:
    return RunWriter(Run(**{"id": run, "dir": str(folder / run), "reward_names": REWARDS, **fields}))


def write(folder: Path, rollouts: Iterable[Rollout], run: str = "r1", **fields: Any) -> Path:
    """A finished run in `<folder>/<run>`, a generation at a time."""
    writing = writer(folder, run, **fields)
    batches: dict[tuple[str, int], list[Rollout]] = {}
    for rollout in rollouts:
        batches.setdefault((rollout.split, rollout.generation), []).append(replace(rollout, run_id=run))
    for (split, _), batch in batches.items():
        writing.write(split, batch)
    writing.close({"rollouts": sum(map(len, batches.values()))})
    return folder / run


def steps(count: int, size: int = 4, **fields: Any) -> list[Rollout]:
    return [one(step, index, **fields) for step in range(1, count + 1) for index in range(size)]


def ids(rollouts: Iterable[Rollout]) -> list[str]:
    """`<step>.<index>` of each."""
    return [f"{rollout.step}.{rollout.index}" for rollout in rollouts]
