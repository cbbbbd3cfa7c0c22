"""Filter everything that leaves the process: skip reasons, metric names, run facts, traces and changed rollouts.

A plugin marked `required`, such as redact, sees each value first, through its `clean(value)` method, and each rollout
through its `on_rollout` hook. Without such a plugin, everything passes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, TypeVar

from rollout_hookspecs import Drop, Rollout, Run, Step, Trace

from rollout_plugins.engine.hook_results import one, replacement
from rollout_plugins.engine.isolation import PluginCalls
from rollout_plugins.engine.plugin_checks import is_required

T = TypeVar("T")

_FIELDS_BUT_MARKS = tuple(field.name for field in fields(Rollout) if field.name != "marks")
_NEVER_SECRET = ("id", "attempt", "dir", "rank", "world_size", "resumed_from")


def filter_value(calls: PluginCalls, value: T, fallback: T) -> T:
    """Return `value` as the required plugins allow it, or `fallback` if one of them fails."""
    if calls.lacking:
        return fallback
    for name, plugin in calls.manager.list_name_plugin():
        method = getattr(plugin, "clean", None) if is_required(plugin) else None
        if callable(method):
            implementation = SimpleNamespace(
                plugin=plugin, plugin_name=name, function=method, argnames=("value",), kwargnames=()
            )
            has_succeeded, result = calls.call(implementation, "clean", {"value": value}, _check_same_kind(value))
            if not has_succeeded:
                return fallback
            value = value if result is None else result
    return value


def _check_same_kind(value: object) -> Callable[[Any], Any]:
    """Return a check of what `clean` returned: None, or a value of the same type, and a list of the same length."""

    def check(result: Any) -> Any:
        if isinstance(value, list) and isinstance(result, list) and len(result) != len(value):
            raise ValueError(f"returned {len(result)} values for {len(value)}")
        return one(type(value))(result)

    return check


def filter_reasons(calls: PluginCalls, reason_by_id: Mapping[str, str]) -> dict[str, str]:
    """Filter the reasons why rollouts were not selected."""
    # Thousands of rollouts share a few reasons, so filter each distinct text once.
    distinct = list(dict.fromkeys(reason_by_id.values()))
    filtered = filter_value(calls, distinct, fallback=["not selected"] * len(distinct)) if distinct else []
    filtered_by_reason = dict(zip(distinct, filtered, strict=True))
    return {rollout_id: filtered_by_reason[reason] for rollout_id, reason in reason_by_id.items()}


def filter_run(calls: PluginCalls, run: Run) -> Run:
    """Filter the fields of a run; if a required plugin fails, return only its identity."""
    if not calls.has_required:
        return run
    identity = {name: getattr(run, name) for name in _NEVER_SECRET}
    facts = {field.name: getattr(run, field.name) for field in fields(Run) if field.name not in identity}
    # As the keys of a dict, names that become equal stay distinct, as they do in rollouts.
    facts["reward_names"] = dict.fromkeys(run.reward_names)
    filtered = filter_value(calls, facts, fallback={})
    if "reward_names" in filtered:
        filtered["reward_names"] = tuple(filtered["reward_names"])
    return Run(**identity, **filtered)


def filter_trace(calls: PluginCalls, trace: Trace, plugin_name: str) -> Trace | None:
    """Filter a trace that the named plugin created, because it may contain more than the rollout did."""
    if not calls.has_required:
        return trace
    parts = {field.name: getattr(trace, field.name) for field in fields(Trace)}
    filtered = filter_value(calls, parts, fallback={})
    if filtered and all(isinstance(filtered[part], type(value)) for part, value in parts.items()):
        return Trace(**filtered)
    calls.counters.drop(f"trace_not_cleaned:{plugin_name}")
    return None


def filter_changes(
    calls: PluginCalls, before: Sequence[Rollout], selected: Sequence[Rollout], step: Step
) -> list[Rollout]:
    """Filter rollouts that plugins changed while they selected them, after required plugins had seen them."""
    seen_by_id = {rollout.id: rollout for rollout in before}
    if not calls.has_required or all(rollout is seen_by_id[rollout.id] for rollout in selected):
        return list(selected)
    filtered = [_filter_change(calls, seen_by_id[rollout.id], rollout, step) for rollout in selected]
    all_marks = filter_value(
        calls,
        [dict(rollout.marks) for rollout in filtered],
        fallback=[dict(seen_by_id[rollout.id].marks) for rollout in filtered],
    )
    return [
        rollout if rollout is seen_by_id[rollout.id] else replace(rollout, marks=marks)
        for rollout, marks in zip(filtered, all_marks, strict=True)
    ]


def _filter_change(calls: PluginCalls, before: Rollout, selected: Rollout, step: Step) -> Rollout:
    """Return the changed rollout, filtered again if more than its marks changed; if that fails, the unchanged one."""
    if all(getattr(selected, name) is getattr(before, name) for name in _FIELDS_BUT_MARKS):
        return selected
    return filter_rollout(calls, selected, step) or before


def filter_rollout(calls: PluginCalls, rollout: Rollout, step: Step) -> Rollout | None:
    """Return the rollout as required plugins allow it, or None if one of them drops it or fails."""
    if calls.lacking:
        return None
    arguments = {"rollout": rollout, "step": step}
    try:
        for _, result in calls.results("on_rollout", arguments, replacement(rollout.id), required_only=True):
            arguments["rollout"] = rollout = result
    except Drop:
        return None
    return rollout
