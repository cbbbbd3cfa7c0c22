"""Equality that tells 1 from 1.0 from True, and knows NaN."""

import math

from rollout_plugins import Image


def same(one, other) -> bool:
    """Whether two values are equal with all their types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, Image):
        return one.hash == other.hash
    return one == other
