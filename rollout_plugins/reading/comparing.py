"""Several runs side by side: what came out of each, and in which settings they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollout_plugins.content.messages import compact
from rollout_plugins.show.chart import training

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun


def compare(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return one row for each run. All rows have the same keys: what a run lacks is None."""
    rows = [_figures(run) for run in runs]
    settings = [{"model": run.info.model, **run.info.settings} for run in runs]
    columns = dict.fromkeys(name for row in rows for name in row)
    differing = [
        name for name in dict.fromkeys(name for some in settings for name in some) if _differs(name, settings)
    ]
    return [
        {**{name: row.get(name) for name in columns}, **{name: known.get(name) for name in differing}}
        for row, known in zip(rows, settings, strict=True)
    ]


def _figures(run: StoredRun) -> dict[str, Any]:
    stats = run.stats()
    steps = training(stats)
    known = [row["reward"] for row in steps if row["reward"] is not None]
    last = steps[-1] if steps else {}
    return {
        "run": run.info.id,
        "name": run.name,
        "rollouts": sum(row["rollouts"] for row in stats),
        "steps": len(steps),
        "first_reward": known[0] if known else None,
        "last_reward": known[-1] if known else None,
        "best_reward": max(known, default=None),
        **{name: value for name, value in last.items() if name.startswith("reward/")},
        "completion_tokens": last.get("completion_tokens"),
        "truncated": sum(row["truncated"] for row in stats),
        "tool_calls": sum(row["tool_calls"] for row in stats),
        "tool_errors": sum(row["tool_errors"] for row in stats),
        "not_finite": sum(row["not_finite"] for row in stats),
        "lost": sum(run.health.drops.values()),
        "folder": run.place,
    }


def _differs(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return len({compact(some.get(name)) for some in settings}) > 1
