"""Replace everything but numbers in number fields, so that sinks receive what the store stores.

Text in such a field is usually the error message of a judge that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from itertools import chain
from typing import Any, Final

from rollout_hookspecs import Rollout, ToolCall

from rollout_plugins.content.call_columns import CallColumns
from rollout_plugins.content.exact_json import INSPECTION_ERRORS, placeholder_for
from rollout_plugins.content.numbers import BOOLEAN, INTEGER, REAL, SMALL_INTEGER, Kind
from rollout_plugins.content.rollout_columns import RolloutColumns

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("reward", "advantage", "time"), REAL),
    **dict.fromkeys(("attempt", "policy_step", "prompt_tokens", "completion_tokens"), INTEGER),
    **dict.fromkeys(("prompt_is_text", "completion_is_text"), BOOLEAN),
}
_CALL_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("turn", "position", "reply"), SMALL_INTEGER),
    "seconds": REAL,
}
_DEFAULTS: Final = {
    record: {field.name: field.default for field in fields(record) if field.default is not MISSING}
    for record in (Rollout, ToolCall)
}
Marks = dict[str, str]


def replace_non_numbers(rollout: Rollout) -> Rollout:
    """Return the rollout with plain numbers in its number fields; mark other values as `lost:<field>`."""
    marks: Marks = {}
    changes = _changes(rollout, _KINDS, "", marks)
    with suppress(*INSPECTION_ERRORS):  # the store replaces a container that cannot be read
        changes |= _changed_rewards(rollout.rewards, marks)
        changes |= _changed_calls(rollout.tool_calls, marks)
    if marks:
        changes["marks"] = {**rollout.marks, **marks}
    return replace(rollout, **changes) if changes else rollout


def replace_non_numbers_in_batch(drafts: RolloutColumns) -> int:
    """Replace non-numbers in a batch; return how many values were lost."""
    if _are_numbers(drafts):
        return 0
    rollouts = list(map(replace_non_numbers, drafts))
    before = sum(map(len, drafts["marks"]))
    names = (*_KINDS, "rewards", "tool_calls", "marks")
    drafts.set_columns(**{name: [getattr(rollout, name) for rollout in rollouts] for name in names})
    return sum(map(len, drafts["marks"])) - before


def _are_numbers(drafts: RolloutColumns) -> bool:
    """Return whether a check of each column's types shows only numbers, as in nearly all batches."""
    if not all(_is_ordinary(drafts[name], kind, _DEFAULTS[Rollout][name]) for name, kind in _KINDS.items()):
        return False
    if not set(map(type, drafts["rewards"])) <= {dict}:
        return False
    if not _is_ordinary(chain.from_iterable(map(dict.values, drafts["rewards"])), REAL, None):
        return False
    calls = drafts["tool_calls"]
    if not isinstance(calls, CallColumns):
        return not any(calls)
    return all(
        _is_ordinary(calls.columns[name], kind, _DEFAULTS[ToolCall][name]) for name, kind in _CALL_KINDS.items()
    )


def _is_ordinary(values: Any, kind: Kind, default: Any) -> bool:
    accepted = {kind.exact, type(default), int} if kind is REAL else {kind.exact, type(default)}
    return set(map(type, values)) <= accepted


def _changes(record: Any, kinds: Mapping[str, Kind], where: str, marks: Marks) -> dict[str, Any]:
    """Return new values for the number fields that have something other than a plain number."""
    defaults = _DEFAULTS[type(record)]
    return {
        name: _number(value, kind, defaults[name], f"{where}{name}", marks)
        for name, kind in kinds.items()
        if type(value := getattr(record, name)) is not kind.exact and value is not defaults[name]
    }


def _changed_rewards(rewards: Mapping[Any, Any], marks: Marks) -> dict[str, Any]:
    others = {name: value for name, value in rewards.items() if type(value) is not float and value is not None}
    numbers = {name: _number(value, REAL, None, f"rewards.{name}", marks) for name, value in others.items()}
    return {"rewards": {**rewards, **numbers}} if numbers else {}


def _changed_calls(calls: Any, marks: Marks) -> dict[str, Any]:
    changes = {
        place: change
        for place, call in enumerate(calls)
        if type(call) is ToolCall and (change := _changes(call, _CALL_KINDS, f"tool_calls[{place}].", marks))
    }
    if not changes:
        return {}
    return {"tool_calls": tuple(replace(call, **changes.get(place, {})) for place, call in enumerate(calls))}


def _number(value: Any, kind: Kind, default: Any, where: str, marks: Marks) -> Any:
    """Return the value as a plain number; if that is impossible, add a mark and return the default."""
    try:
        return kind.convert(value)
    except INSPECTION_ERRORS:
        placeholder = placeholder_for(value, where, kind.otherwise)
        marks[f"lost:{placeholder.where}"] = str(placeholder)
        return default
