"""Compute the statistics of a run from its rollouts, and record runs whose statistics are hard to merge."""

import math
from dataclasses import replace
from itertools import groupby
from statistics import fmean, pstdev

import pytest
from reading import called, one, write, writer


def plain(run):
    """The same figures from every rollout, one after the other."""
    made = sorted(run, key=lambda r: (r.split == "eval", r.split, r.step is None, r.step))
    counts = {row["id"]: row for row in run.table(["id", "turns", "calls", "failed_calls"]).to_pylist()}
    return [
        _row(split, step, list(some), counts) for (split, step), some in groupby(made, lambda r: (r.split, r.step))
    ]


def _row(split, step, made, counts):
    real = [r.reward for r in made if r.reward is not None and not math.isnan(r.reward)]
    finite, tokens = [x for x in real if math.isfinite(x)], [r.completion_tokens for r in made]
    tokens = [n for n in tokens if n is not None]
    turns, calls, failed = ([counts[r.id][name] for r in made] for name in ("turns", "calls", "failed_calls"))
    groups = {}
    for r in made:
        if r.reward is not None and math.isfinite(r.reward):
            groups.setdefault((r.attempt, r.generation, r.group), []).append(r.reward)
    spreads = [pstdev(some) for some in groups.values() if len(some) > 1]
    given = {name: [v for r in made if (v := r.rewards.get(name)) is not None and not math.isnan(v)] for name in NAMES}
    return {
        "split": split,
        "step": step,
        "rollouts": len(made),
        "scored": len(real),
        "reward": sum(real) / len(real) if real else None,
        "reward_min": min(real, default=None),
        "reward_max": max(real, default=None),
        "reward_std": pstdev(finite) if finite else None,
        "not_finite": sum(any(map(_is_odd, [r.reward, *r.rewards.values()])) for r in made),
        "completion_tokens": fmean(tokens) if tokens else None,
        "completion_tokens_max": max(tokens, default=None),
        "truncated": sum(r.finish == "length" for r in made),
        "errors": sum(r.error is not None or r.finish == "error" for r in made),
        "turns": fmean(turns),
        "tool_calls": sum(calls),
        "tool_errors": sum(failed),
        **{f"reward/{name}": fmean(values) if values else None for name, values in given.items()},
        "group_std": fmean(spreads) if spreads else None,
        "groups": len(spreads),
        "flat_groups": sum(spread == 0 for spread in spreads),
    }


def _is_odd(value):
    return value is not None and not math.isfinite(value)


NAMES = ("correct", "format")


def hostile(step, index, **fields):
    """Rewards of every kind, some missing, in groups of four of which some are flat."""
    reward = (0.1, 0.1, 0.1, 0.1, 1e9, 1e9 + 1e-3, -3.5, None, math.nan, 2.0, math.inf, 0.3)[(5 * step + index) % 12]
    made = {
        "group": index // 4,
        "group_size": 4,
        "reward": reward,
        "rewards": {"correct": reward, "format": index / 3},
        "completion_tokens": None if index % 5 == 4 else 10 * index,
        "finish": ("stop", "length", "error", "unknown")[index % 4],
        "error": "it broke" if index % 7 == 6 else None,
        "tool_calls": (called("search"), called("search", "error"))[: index % 3],
    }
    return one(step, index, **{**made, **fields})


def parts_of(folder, made, **facts):
    """A part for each step."""
    for _, some in groupby(made, lambda rollout: rollout.step):
        run = write(folder, list(some), **facts)
    return run


def two_ranks(folder):
    """Each has half of a generation, and half of a group in the middle; what the second does last is a journal."""
    live = writer(folder, rank=1, world_size=2)
    for step in (1, 2, 3):
        first, second = (
            [hostile(step, index, rank=index // 6) for index in some] for some in (range(6), range(6, 12))
        )
        parts_of(folder, first, rank=0, world_size=2)
        live.write("train", second)
        last = [hostile(4, index, rank=1, split="eval", id=f"e{step}.{index}", generation=step) for index in range(6)]
        live.write("eval", [replace(rollout, step=None) for rollout in last])
    live.sync()
    return folder / "r1"


def trained_again(folder):
    """A resumed attempt did two steps again, and lost a rollout of a group."""
    parts_of(folder, [hostile(step, index) for step in (1, 2, 3) for index in range(8)])
    again = [hostile(step, index, attempt=2) for step in (2, 3, 4) for index in range(8) if (step, index) != (3, 5)]
    return parts_of(folder, again, attempt=2, resumed_from=1)


def not_as_they_say(folder):
    """Groups that look whole in each of two parts, and are the same group."""
    for rank in (0, 1):
        parts_of(folder, [hostile(step, n, rank=rank, group_size=2) for step in (1, 2) for n in range(8)], rank=rank)
    return folder / "r1"


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True) if isinstance(value, float) else value
