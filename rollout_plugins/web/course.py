"""The run's facts, and its figures by step from all of its rollouts, not only those in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rollout_plugins.content.messages import compact
from rollout_plugins.content.numbers import finite
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.reading.step_log import PREFIX
from rollout_plugins.show.chart import LOGGED
from rollout_plugins.show.text import clean
from rollout_plugins.web.pools import Texts

# Points of a chart; neighbouring steps of a longer run share one.
POINTS = 1500


def run_facts(run: StoredRun, texts: Texts) -> dict[str, Any]:
    """Return the run's facts, without its folder: the report may be sent to others."""
    info = run.info
    return {
        "id": clean(str(info.id)),
        "name": clean(run.name),
        "trainer": clean(str(info.trainer)),
        "model": clean(str(info.model)),
        "world_size": info.world_size,
        "num_generations": info.num_generations,
        "rewards": [
            [clean(str(name)), texts.scalar(weight)]
            for name, weight in zip_longest(info.reward_names, info.reward_weights[: len(info.reward_names)])
        ],
        "tools": [_tool(tool, texts) for tool in info.tools],
        "chat_template": None if info.chat_template is None else {"text": texts.add(info.chat_template)},
        "versions": _as_values(info.versions, texts),
        "settings": _as_values(info.settings, texts),
        "attempts": [_attempt(attempt) for attempt in run.attempts],
        "not_finite": {clean(name): kinds for name, kinds in run.health.not_finite.items()},
        "drops": _counts(run.health.drops),
        "untrained": _counts(run.health.untrained),
        "unsent": _counts(run.health.unsent),
        "plugin_errors": _counts(run.health.plugin_errors),
        "warnings": _counts(run.health.warnings),
        "annotations": {clean(name): list(map(clean, columns)) for name, columns in run.annotations.items()},
    }


def _as_values(values: Any, texts: Texts) -> dict[str, Any]:
    items = values.items() if hasattr(values, "items") else ()
    return {clean(str(name)): value_of(value, texts) for name, value in items}


def value_of(value: Any, texts: Texts) -> Any:
    """Return a setting or a column: numbers and texts unmodified, anything else as JSON."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return texts.scalar(value if plain else compact(value))


def _tool(tool: Any, texts: Texts) -> dict[str, Any]:
    function = tool.get("function", tool) if hasattr(tool, "get") else {}
    facts = function if hasattr(function, "get") else {}
    return {
        "name": clean(str(facts.get("name", "?"))),
        "description": value_of(facts.get("description"), texts),
        "schema": {"text": texts.add(compact(tool))},
    }


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    names = ("attempt", "rank", "started", "ended", "resumed_from")
    facts = {name: value for name in names if (value := finite(attempt.get(name))) is not None}
    return {**facts, "rollouts": sum(_counts(attempt.get("rollouts")).values())}


def _counts(value: Any) -> dict[str, int]:
    """Return the counts by name from a run file."""
    items = value.items() if isinstance(value, dict) else ()
    return {clean(str(name)): count for name, count in items if isinstance(count, int)}


def step_width(run: StoredRun) -> int:
    """Return how many neighbouring steps share a point of the charts."""
    steps = run.values("step")
    return -(-(steps[-1] - steps[0] + 1) // POINTS) if len(steps) > POINTS else 1


def step_series(rows: Sequence[Mapping[str, Any]], texts: Texts) -> dict[str, dict[str, list[Any]]]:
    """Return the figures of the steps of each split, as a list for each figure."""
    splits = dict.fromkeys(row["split"] for row in rows)
    with_step = [row for row in rows if row["step"] is not None]
    return {
        clean(str(split)): _columns([row for row in with_step if row["split"] == split], texts) for split in splits
    }


def _columns(rows: Sequence[Mapping[str, Any]], texts: Texts) -> dict[str, list[Any]]:
    if not rows:
        return {}
    names = [name for name in rows[0] if name != "split" and (name in LOGGED or not name.startswith(PREFIX))]
    return {clean(name): [_short(texts.scalar(row[name])) for row in rows] for name in names}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
