"""Rollouts as the contract has them, so that plugins, sinks and viewers need not expect None where a list belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from rollout_hookspecs import Placeholder, Rollout

from rollout_plugins.content.drafts import Drafts
from rollout_plugins.content.outcomes import Outcomes
from rollout_plugins.content.talk import Talk

_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("prompt", "completion", "tool_calls", "images"), (tuple, list)),
    **dict.fromkeys(("rewards", "columns", "extra", "marks"), (Mapping,)),
    **dict.fromkeys(("step", "generation", "rank", "index", "group", "group_size"), (int,)),
}
_DEFAULTS = {f.name: f.default if f.default is not MISSING else f.default_factory for f in fields(Rollout)}


def unfit(rollout: Rollout) -> dict[str, str]:
    """Fields that hold something else than the contract says, and what that is."""
    found = {}
    for name, kinds in _KINDS.items():
        value = getattr(rollout, name)
        if not issubclass(type(value), kinds):
            found[name] = type(value).__name__
    return found


def all_fit(drafts: Drafts) -> bool:
    """Whether all rollouts hold what the contract says."""
    lists = {name: drafts[name] for name in _KINDS}
    return all(
        isinstance(values, (Talk, Outcomes)) or all(issubclass(kind, _KINDS[name]) for kind in set(map(type, values)))
        for name, values in lists.items()
    )


def fitted(rollout: Rollout) -> Rollout:
    """The rollout with empty fields, marked, where a host put something else; a lone message becomes a list of one."""
    odd = unfit(rollout)
    if not odd:
        return rollout
    marks = {} if "marks" in odd else dict(rollout.marks)
    changes: dict[str, Any] = {}
    for name, kind in odd.items():
        value = getattr(rollout, name)
        if name in {"prompt", "completion"} and value is not None:
            changes[name] = (value,)
            continue
        default = _DEFAULTS[name]
        changes[name] = default() if callable(default) else default
        marks[f"lost:{name}"] = str(Placeholder(type=kind, where=name, why=f"no {_KINDS[name][0].__name__}"))
    return replace(rollout, **{**changes, "marks": marks})
