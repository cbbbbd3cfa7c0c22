"""Rollouts as the contract has them, so that plugins, sinks and viewers need not expect None where a list belongs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollout_hookspecs import Placeholder, Rollout

from rollout_plugins.content.call_columns import Outcomes
from rollout_plugins.content.message_columns import Talk
from rollout_plugins.content.rollout_columns import DEFAULTS, Drafts

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("prompt", "completion", "tool_calls", "images"), (tuple, list)),
    **dict.fromkeys(("rewards", "columns", "extra", "marks"), (Mapping,)),
    **dict.fromkeys(("step", "generation", "rank", "index", "group", "group_size"), (int,)),
}


def unfit(rollout: Rollout) -> dict[str, str]:
    """Fields that hold something other than the contract says, and what that is."""
    values = {name: getattr(rollout, name) for name in _KINDS}
    return {name: type(value).__name__ for name, value in values.items() if not _is_fit(name, type(value))}


def fit(drafts: Drafts) -> int:
    """Empty and mark what holds something other than the contract says; how many values that costs.

    A lone message becomes a list of one, and costs nothing.
    """
    notes: list[dict[str, str]] = [{} for _ in range(len(drafts))]
    for name in _KINDS:
        values = drafts[name]
        if isinstance(values, (Talk, Outcomes)) or all(_is_fit(name, kind) for kind in set(map(type, values))):
            continue
        drafts.put(**{name: [_fitting(name, value, noted) for value, noted in zip(values, notes, strict=True)]})
    if any(notes):
        drafts.put(marks=[{**marks, **noted} for marks, noted in zip(drafts["marks"], notes, strict=True)])
    return sum(map(len, notes))


def _is_fit(name: str, kind: type) -> bool:
    # Not isinstance, which asks the value: one may object to that, or lie.
    return issubclass(kind, _KINDS[name])


def _fitting(name: str, value: Any, noted: dict[str, str]) -> Any:
    if _is_fit(name, type(value)):
        return value
    if name in {"prompt", "completion"} and value is not None:
        return (value,)
    kept = Placeholder(type=type(value).__name__, where=name, why=f"not of class {_KINDS[name][0].__name__}")
    noted[f"lost:{name}"] = str(kept)
    return DEFAULTS[name]()
