"""Rank the rollouts of a step by how worth showing they are. Each strategy returns ids with reasons, best first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from rollout_hookspecs import Rollout

T = TypeVar("T")
Reasons = dict[str, str]


class Entry(NamedTuple):
    """What a strategy needs of a rollout, so that the rollout itself need not be kept in memory."""

    id: str
    group: tuple[int, int]
    value: float | None
    errored: bool


class Pool:
    """All rollouts of one step so far, and which of them were kept.

    A streaming host submits them in parts. For each part, the strategy ranks the whole pool and chooses among the new
    rollouts, so it keeps those that it would keep with everything seen so far.
    """

    def __init__(self, places: int, seed: str, ends: int | None) -> None:
        self.places = places
        self.ends = ends
        self.entries: list[Entry] = []
        self.new: set[str] = set()
        self.kept: set[str] = set()
        self._seed = seed

    def add(self, rollouts: Sequence[Rollout], values: Sequence[float | None]) -> None:
        pooled_ids = {entry.id for entry in self.entries}
        self.new = {rollout.id for rollout in rollouts}
        self.kept -= self.new  # submitted again, so chosen again
        for rollout, value in zip(rollouts, values, strict=True):
            if rollout.id not in pooled_ids:
                group = (rollout.generation, rollout.group)
                self.entries.append(Entry(rollout.id, group, value, rollout.error is not None))

    @property
    def room(self) -> int:
        return max(0, self.places - len(self.kept))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in the step's own random order, which depends only on the seed."""
        return random.Random(self._seed).sample(items, len(items))  # noqa: S311 - a sample, not a secret

    def ranked(self) -> list[Entry]:
        """Return the entries with a value, best first; equal ones keep their order."""
        with_value = [entry for entry in self.entries if entry.value is not None]
        return sorted(with_value, key=lambda entry: -(entry.value or 0.0))

    def choice(self, reasons: Reasons) -> Reasons:
        """Return the new entries among the best of the whole pool, as far as there is room."""
        best = list(reasons.items())[: self.places]
        return dict([(rollout_id, reason) for rollout_id, reason in best if rollout_id in self.new][: self.room])


def first(pool: Pool) -> Reasons:
    """Choose in order of arrival."""
    return pool.choice({entry.id: f"one of the first {pool.places}" for entry in pool.entries})


def random_choice(pool: Pool) -> Reasons:
    """Choose at random."""
    return pool.choice({entry.id: "drawn at random" for entry in pool.shuffled(pool.entries)})


def top_bottom(pool: Pool) -> Reasons:
    """Choose the best and the worst in turn, so that a small cap still has both."""
    ranked = pool.ranked()
    each = min(pool.ends or pool.places, (pool.places + 1) // 2)
    chosen: Reasons = {}
    for i in range(min(each, len(ranked))):
        chosen.setdefault(ranked[i].id, f"number {i + 1} from the top")
        chosen.setdefault(ranked[-1 - i].id, f"number {i + 1} from the bottom")
    return pool.choice(chosen)


def groups(pool: Pool) -> Reasons:
    """Choose complete groups: those with errors first, then those of the best and worst rollout, then random ones."""
    members: dict[tuple[int, int], list[Entry]] = {}
    for entry in pool.entries:
        members.setdefault(entry.group, []).append(entry)
    ranked = pool.ranked()
    special_reasons = {ranked[0].id: "best of the step", ranked[-1].id: "worst of the step"} if len(ranked) > 1 else {}
    chosen: Reasons = {}
    for group in _by_interest(list(members.values()), ranked, pool):
        new = [entry for entry in group if entry.id in pool.new]
        if len(chosen) + len(new) <= pool.room:
            chosen.update((entry.id, _reason(entry, group, special_reasons)) for entry in new)
    if not chosen and not pool.kept:
        return _choose_singles(pool, special_reasons)
    for (
        rollout_id,
        reason,
    ) in special_reasons.items():  # its group may be too large, but the rollout alone may fit
        if rollout_id in pool.new and len(chosen) < pool.room:
            chosen.setdefault(rollout_id, reason)
    return chosen


def _by_interest(all_groups: list[list[Entry]], ranked: list[Entry], pool: Pool) -> list[list[Entry]]:
    """Return the groups by interest. Only one with errors comes first, to leave room for the best and the worst."""
    all_groups = pool.shuffled(all_groups)
    ends = [group for entry in (ranked[:1] + ranked[-1:]) for group in all_groups if entry in group]
    errored = sorted((g for g in all_groups if any(e.errored for e in g)), key=lambda g: -sum(e.errored for e in g))
    return _unique([*errored[:1], *ends, *errored, *all_groups])


def _unique(lists: Sequence[list[Entry]]) -> list[list[Entry]]:
    return list({id(group): group for group in lists}.values())


def _reason(entry: Entry, group: Sequence[Entry], special_reasons: Reasons) -> str:
    if entry.errored:
        return "errored"
    if entry.id in special_reasons:
        return special_reasons[entry.id]
    if any(other.errored for other in group):
        return "in a group with an error"
    special = next((special_reasons[other.id] for other in group if other.id in special_reasons), None)
    return f"in the group of the {special}" if special else "its group was drawn at random"


def _choose_singles(pool: Pool, special_reasons: Reasons) -> Reasons:
    """Choose single rollouts if no complete group fits: errored ones, the best, the worst, then random ones."""
    entries = sorted(
        pool.shuffled(pool.entries), key=lambda entry: (not entry.errored, entry.id not in special_reasons)
    )
    return pool.choice(
        {e.id: "errored" if e.errored else special_reasons.get(e.id, "drawn at random") for e in entries}
    )


STRATEGIES: dict[str, Callable[[Pool], Reasons]] = {
    "groups": groups,
    "top_bottom": top_bottom,
    "random": random_choice,
    "first": first,
}
