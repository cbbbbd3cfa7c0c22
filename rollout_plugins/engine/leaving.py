"""What leaves the process besides rollouts, as `required` plugins let it: they offer `clean(value)` for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, TypeVar

from rollout_hookspecs import Drop, Rollout, Run, Step, Trace

from rollout_plugins.engine.isolation import PluginCalls
from rollout_plugins.engine.returned import one, replacement
from rollout_plugins.engine.telling import is_required

T = TypeVar("T")

_BESIDE_MARKS = tuple(field.name for field in fields(Rollout) if field.name != "marks")
_NEVER_SECRET = ("id", "attempt", "dir", "rank", "world_size", "resumed_from")


def clean(calls: PluginCalls, value: T, instead: T) -> T:
    """The value as it may leave; `instead` where a `required` plugin cannot say."""
    if calls.lacking:
        return instead
    for name, plugin in calls.manager.list_name_plugin():
        method = getattr(plugin, "clean", None) if is_required(plugin) else None
        if callable(method):
            impl = SimpleNamespace(
                plugin=plugin, plugin_name=name, function=method, argnames=("value",), kwargnames=()
            )
            worked, result = calls.call(impl, "clean", {"value": value}, _alike(value))
            if not worked:
                return instead
            value = value if result is None else result
    return value


def _alike(value: object) -> Callable[[Any], Any]:
    """Accepts None or a value of this one's kind; of a list, as long a one, since each item has its own place."""

    def read(result: Any) -> Any:
        if isinstance(value, list) and isinstance(result, list) and len(result) != len(value):
            raise ValueError(f"returned {len(result)} values for {len(value)}")
        return one(type(value))(result)

    return read


def cleaned_reasons(calls: PluginCalls, reasons: Mapping[str, str]) -> dict[str, str]:
    """Why rollouts were left out, by id, as it may be said."""
    texts = list(dict.fromkeys(reasons.values()))  # thousands of rollouts share a few reasons
    if not texts or not calls.has_required:
        return dict(reasons)
    said = dict(zip(texts, clean(calls, texts, ["not selected"] * len(texts)), strict=True))
    return {ident: said[why] for ident, why in reasons.items()}


def cleaned_names(calls: PluginCalls, numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers under names that may leave."""
    return dict(clean(calls, dict(numbers), {})) if numbers and calls.has_required else dict(numbers)


def cleaned_run(calls: PluginCalls, run: Run) -> Run:
    """The run's facts as they may leave; without what explains them where a plugin cannot say."""
    if not calls.has_required:
        return run
    kept = {name: getattr(run, name) for name in _NEVER_SECRET}
    facts = {field.name: getattr(run, field.name) for field in fields(Run) if field.name not in kept}
    facts["reward_names"] = dict.fromkeys(run.reward_names)  # names that become equal stay apart, as in rollouts
    found = clean(calls, facts, {})
    names = {"reward_names": tuple(found["reward_names"])} if "reward_names" in found else {}
    return Run(**kept, **{**found, **names})


def cleaned_trace(calls: PluginCalls, trace: Trace, made_by: str) -> Trace | None:
    """A trace that another plugin made: it may hold more than the rollout did."""
    if not calls.has_required:
        return trace
    parts = {field.name: getattr(trace, field.name) for field in fields(Trace)}
    found = clean(calls, parts, {})
    if found and all(isinstance(found[part], type(value)) for part, value in parts.items()):
        return Trace(**found)
    calls.counters.drop(f"trace_not_cleaned:{made_by}")
    return None


def cleaned_changes(calls: PluginCalls, seen: Sequence[Rollout], now: Sequence[Rollout], step: Step) -> list[Rollout]:
    """Rollouts as they may leave, where plugins changed them after `required` ones had seen them."""
    before = {rollout.id: rollout for rollout in seen}
    if not calls.has_required or all(rollout is before[rollout.id] for rollout in now):
        return list(now)
    again = [_seen_again(calls, before[rollout.id], rollout, step) for rollout in now]
    marks = clean(calls, [dict(rollout.marks) for rollout in again], [dict(before[r.id].marks) for r in now])
    return [
        rollout if rollout is before[rollout.id] else replace(rollout, marks=said)
        for rollout, said in zip(again, marks, strict=True)
    ]


def _seen_again(calls: PluginCalls, seen: Rollout, now: Rollout, step: Step) -> Rollout:
    """With more than new marks, it goes through `required` plugins once more; else as they saw it."""
    if all(getattr(now, name) is getattr(seen, name) for name in _BESIDE_MARKS):
        return now
    return seen_by_required(calls, now, step) or seen


def seen_by_required(calls: PluginCalls, rollout: Rollout, step: Step) -> Rollout | None:
    """The rollout as `required` plugins let it leave; None where one of them drops it, or fails."""
    if calls.lacking:
        return None
    arguments = {"rollout": rollout, "step": step}
    try:
        for _, result in calls.results("on_rollout", arguments, replacement(rollout.id), required_only=True):
            arguments["rollout"] = rollout = result
    except Drop:
        return None
    return rollout
