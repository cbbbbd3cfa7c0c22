"""Replace values that break the contract, so that no plugin or viewer has to check for None instead of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollout_hookspecs import Placeholder, Rollout

from rollout_plugins.content.call_columns import CallColumns
from rollout_plugins.content.message_columns import MessageColumns
from rollout_plugins.content.rollout_columns import DEFAULTS, RolloutColumns

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("prompt", "completion", "tool_calls", "images"), (tuple, list)),
    **dict.fromkeys(("rewards", "columns", "extra", "marks"), (Mapping,)),
    **dict.fromkeys(("step", "generation", "rank", "index", "group", "group_size"), (int,)),
}


def nonconforming_fields(rollout: Rollout) -> dict[str, str]:
    """Return the fields whose values have a type that the contract does not allow, with the name of that type."""
    values = {name: getattr(rollout, name) for name in _KINDS}
    return {name: type(value).__name__ for name, value in values.items() if not _conforms(name, type(value))}


def conform(rollouts: RolloutColumns) -> int:
    """Replace and mark values that break the contract; return how many were lost.

    A message that is not in a list becomes a list of one, which loses nothing.
    """
    notes: list[dict[str, str]] = [{} for _ in range(len(rollouts))]
    for name in _KINDS:
        values = rollouts[name]
        if isinstance(values, (MessageColumns, CallColumns)) or all(
            _conforms(name, kind) for kind in set(map(type, values))
        ):
            continue
        rollouts.set_columns(
            **{
                name: [
                    _replacement(name, value, marks_of_one) for value, marks_of_one in zip(values, notes, strict=True)
                ]
            }
        )
    if any(notes):
        rollouts.set_columns(
            marks=[{**marks, **marks_of_one} for marks, marks_of_one in zip(rollouts["marks"], notes, strict=True)]
        )
    return sum(map(len, notes))


def _conforms(name: str, kind: type) -> bool:
    # Not isinstance: it reads `value.__class__`, which a foreign object may fake or raise from.
    return issubclass(kind, _KINDS[name])


def _replacement(name: str, value: Any, noted: dict[str, str]) -> Any:
    if _conforms(name, type(value)):
        return value
    if name in {"prompt", "completion"} and value is not None:
        return (value,)
    placeholder = Placeholder(type=type(value).__name__, where=name, why=f"not of class {_KINDS[name][0].__name__}")
    noted[f"lost:{name}"] = str(placeholder)
    return DEFAULTS[name]()
