"""Find a smallest set of rollouts whose loss is NaN, or whose gradient is too large."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollout_plugins.errors import RunError

_BOUND = re.compile(r"grad>(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", re.IGNORECASE)

Measure = Callable[[Sequence[int]], tuple[float, float]]
"""Returns the loss and the gradient norm of the rollouts in these places."""


@dataclass(frozen=True)
class Fault:
    """What is looked for: a value that is NaN or infinite, and with a bound also a larger gradient norm."""

    bound: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that `nan` or `grad>10` names."""
        if text == "nan":
            return cls()
        if match := _BOUND.fullmatch(text.replace(" ", "")):
            return cls(float(match[1]))
        raise RunError(f"{text!r} is not a fault to look for; accepted: 'nan', or a bound such as 'grad>10'")

    def is_in(self, measured: tuple[float, float]) -> bool:
        """Return whether a loss and a gradient norm show the fault."""
        loss, norm = measured
        return not (math.isfinite(loss) and math.isfinite(norm)) or norm > self.bound

    def __str__(self) -> str:
        return "a NaN or an infinity" if self.bound == math.inf else f"a gradient norm above {self.bound:g}"


def find_smallest_set(fault: Fault, single: Sequence[tuple[float, float]], measure: Measure) -> list[int]:
    """Return places of rollouts that show the fault together, none of which can be left out; empty if all do not.

    single: the loss and the gradient norm of each rollout by itself.
    """
    order = sorted(range(len(single)), key=lambda place: _rank(single[place]), reverse=True)
    if order and fault.is_in(single[order[0]]):
        return order[:1]
    chosen: list[int] = []
    for place in order:
        chosen.append(place)
        if len(chosen) > 1 and fault.is_in(measure(chosen)):
            break
    else:
        return []
    for place in list(chosen):
        others = [one for one in chosen if one != place]
        if len(others) > 1 and fault.is_in(measure(others)):
            chosen = others
    return sorted(chosen)


def _rank(measured: tuple[float, float]) -> tuple[bool, float]:
    loss, norm = measured
    is_broken = not (math.isfinite(loss) and math.isfinite(norm))
    return is_broken, 0.0 if is_broken else norm
