"""RecordArguments a batch belongs, as the loop says: what makes no sense is a mistake at first, and a mark later."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from rollout_plugins.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordArguments:
    """The arguments of `record` beside the rollouts."""

    step: int
    split: Literal["train", "eval"]
    policy_step: int | None
    group_size: int | None
    marks: dict[str, str] = field(default_factory=dict)
    """What was said that makes no sense."""


def record_arguments(
    *, step: Any, split: Any, policy_step: Any, group_size: Any, last_step: int, is_checked: bool
) -> RecordArguments:
    """The arguments as they should be; in place of a `step` that is none stands the last one."""
    faults: dict[str, str] = {}

    def read(name: str, value: Any, convert: Callable[[Any], Any], fallback: Any, wanted: str) -> Any:
        try:
            return convert(value)
        except Exception:
            faults[name] = f"{name} is {_shown(value)}; give {wanted}"
            return fallback

    found = RecordArguments(
        step=read("step", step, operator.index, last_step, "the number of the optimizer step"),
        split=read("split", split, _split, "train", "'train' or 'eval'"),
        policy_step=read("policy_step", policy_step, _whole_or_none, None, "a whole number, or leave it out"),
        group_size=read("group_size", group_size, _positive_or_none, None, "a number from 1, or leave it out"),
    )
    if faults and is_checked:
        raise SetupError("; ".join(faults.values()))
    found.marks.update({f"lost:{name}": fault for name, fault in faults.items()})
    return found


def _split(value: Any) -> str:
    if value not in ("train", "eval"):
        raise ValueError
    return str(value)


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else operator.index(value)


def _positive_or_none(value: Any) -> int | None:
    number = _whole_or_none(value)
    if number is not None and number < 1:
        raise ValueError
    return number


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"
