"""Compare runs: the results of each, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollout_plugins.content.messages import compact
from rollout_plugins.show.chart import training

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun


def compare(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return a dict for each run. All have the same keys; a value that a run lacks is None."""
    rows = [_summarise(run) for run in runs]
    settings = [{"model": run.info.model, **run.info.settings} for run in runs]
    columns = dict.fromkeys(name for row in rows for name in row)
    differing = [
        name
        for name in dict.fromkeys(name for run_settings in settings for name in run_settings)
        if _differs(name, settings)
    ]
    return [
        {**{name: row.get(name) for name in columns}, **{name: settings_of_run.get(name) for name in differing}}
        for row, settings_of_run in zip(rows, settings, strict=True)
    ]


def _summarise(run: StoredRun) -> dict[str, Any]:
    stats = run.stats()
    steps = training(stats)
    rewards = [row["reward"] for row in steps if row["reward"] is not None]
    last = steps[-1] if steps else {}
    return {
        "run": run.info.id,
        "name": run.name,
        "rollouts": sum(row["rollouts"] for row in stats),
        "steps": len(steps),
        "first_reward": rewards[0] if rewards else None,
        "last_reward": rewards[-1] if rewards else None,
        "best_reward": max(rewards, default=None),
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
