"""Which rollouts of a step are worth showing. Each strategy gives ids with the reason, most wanted first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from rollout_hookspecs import Rollout

T = TypeVar("T")
Reasons = dict[str, str]


class Entry(NamedTuple):
    """What a strategy needs to know of a rollout; the rollout itself is not held."""

    id: str
    group: tuple[int, int]
    value: float | None
    errored: bool


class Pool:
    """All rollouts of one step so far, and which of them were kept.

    A streaming host hands them over bit by bit: each time the strategy ranks the whole pool and chooses among the
    new ones, so what it keeps of a bit is what it would keep with all that is known by then.
    """

    def __init__(self, places: int, seed: str, ends: int | None) -> None:
        self.places = places
        self.ends = ends
        self.entries: list[Entry] = []
        self.new: set[str] = set()
        self.kept: set[str] = set()
        self._seed = seed

    def add(self, rollouts: Sequence[Rollout], values: Sequence[float | None]) -> None:
        known = {entry.id for entry in self.entries}
        self.new = {rollout.id for rollout in rollouts}
        self.kept -= self.new  # handed over once more, so chosen once more
        for rollout, value in zip(rollouts, values, strict=True):
            if rollout.id not in known:
                group = (rollout.generation, rollout.group)
                self.entries.append(Entry(rollout.id, group, value, rollout.error is not None))

    @property
    def room(self) -> int:
        return max(0, self.places - len(self.kept))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """In an order of this step's own: the same again with the same seed, and nobody else's numbers change."""
        return random.Random(self._seed).sample(items, len(items))  # noqa: S311 - a sample, not a secret

    def ranked(self) -> list[Entry]:
        """Best first; equal ones in their order; those without a value left out."""
        with_value = [entry for entry in self.entries if entry.value is not None]
        return sorted(with_value, key=lambda entry: -(entry.value or 0.0))

    def choice(self, reasons: Reasons) -> Reasons:
        """The new ones among the most wanted of the whole pool, as far as there is room."""
        wanted = list(reasons.items())[: self.places]
        return dict([(ident, why) for ident, why in wanted if ident in self.new][: self.room])


def first(pool: Pool) -> Reasons:
    """In the order they came."""
    return pool.choice({entry.id: f"one of the first {pool.places}" for entry in pool.entries})


def drawn(pool: Pool) -> Reasons:
    """At random."""
    return pool.choice({entry.id: "drawn at random" for entry in pool.shuffled(pool.entries)})


def top_bottom(pool: Pool) -> Reasons:
    """The best and the worst, in turn, so that a small cap still has both."""
    ranked = pool.ranked()
    each = min(pool.ends or pool.places, (pool.places + 1) // 2)
    chosen: Reasons = {}
    for i in range(min(each, len(ranked))):
        chosen.setdefault(ranked[i].id, f"number {i + 1} from the top")
        chosen.setdefault(ranked[-1 - i].id, f"number {i + 1} from the bottom")
    return pool.choice(chosen)


def groups(pool: Pool) -> Reasons:
    """Whole groups: with errors first, then those of the best and the worst rollout, then at random."""
    members: dict[tuple[int, int], list[Entry]] = {}
    for entry in pool.entries:
        members.setdefault(entry.group, []).append(entry)
    ranked = pool.ranked()
    wanted = {ranked[0].id: "best of the step", ranked[-1].id: "worst of the step"} if len(ranked) > 1 else {}
    chosen: Reasons = {}
    for group in _by_interest(list(members.values()), ranked, pool):
        new = [entry for entry in group if entry.id in pool.new]
        if len(chosen) + len(new) <= pool.room:
            chosen.update((entry.id, _reason(entry, group, wanted)) for entry in new)
    if not chosen and not pool.kept:
        return _part(pool, wanted)
    for ident, why in wanted.items():  # where their groups are too large, at least they themselves
        if ident in pool.new and len(chosen) < pool.room:
            chosen.setdefault(ident, why)
    return chosen


def _by_interest(every: list[list[Entry]], ranked: list[Entry], pool: Pool) -> list[list[Entry]]:
    """Groups in the order they are wanted. One error comes first; more of them leave the best and the worst in."""
    every = pool.shuffled(every)
    ends = [group for entry in (ranked[:1] + ranked[-1:]) for group in every if entry in group]
    errored = sorted((g for g in every if any(e.errored for e in g)), key=lambda g: -sum(e.errored for e in g))
    return _unique([*errored[:1], *ends, *errored, *every])


def _unique(lists: Sequence[list[Entry]]) -> list[list[Entry]]:
    return list({id(group): group for group in lists}.values())


def _reason(entry: Entry, group: Sequence[Entry], wanted: Reasons) -> str:
    if entry.errored:
        return "errored"
    if entry.id in wanted:
        return wanted[entry.id]
    if any(other.errored for other in group):
        return "in a group with an error"
    special = next((wanted[other.id] for other in group if other.id in wanted), None)
    return f"in the group of the {special}" if special else "its group was drawn at random"


def _part(pool: Pool, wanted: Reasons) -> Reasons:
    """Where no group fits as a whole: errored ones, the best, the worst, then at random."""
    entries = sorted(pool.shuffled(pool.entries), key=lambda entry: (not entry.errored, entry.id not in wanted))
    return pool.choice({e.id: "errored" if e.errored else wanted.get(e.id, "drawn at random") for e in entries})


STRATEGIES: dict[str, Callable[[Pool], Reasons]] = {
    "groups": groups,
    "top_bottom": top_bottom,
    "random": drawn,
    "first": first,
}
