"""One generation on its way through the plugins, and what the store and each sink get of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rollout_hookspecs import Rollout, Step, Trace

from rollout_plugins.counters import Counters


class Work:
    """One generation on its way through the plugins."""

    def __init__(self, raw: Sequence[Rollout], step: Step) -> None:
        self.raw = raw
        self.step = step
        self.done: list[Rollout | None] = []
        self.metrics: dict[str, float] | None = None
        self.chosen: list[Rollout] | None = None
        self.skipped: dict[str, str] = {}
        self.is_clean = False
        self.streamed: list[Rollout] = []
        self.traces: dict[str, Trace | None] = {}

    def traces_for(self, scope: str) -> list[Trace]:
        """What a sink of this scope gets: the selected rollouts, or this rank's whole generation."""
        rollouts = self.streamed if scope == "stream" else self.chosen or ()
        return [trace for r in rollouts if (trace := self.traces.get(r.id)) is not None]

    def forget_unseen(self, counters: Counters) -> None:
        """Drop what plugins broke off before, since one of them must have seen whatever is stored."""
        unseen = len(self.raw) - len(self.done)
        if unseen:
            counters.drop("not_seen_by_required_plugin", unseen)
        self.done += [None] * unseen

    def marked(self, rank: int) -> list[Rollout]:
        """This rank's rollouts for the store, with who kept or skipped each; untouched where plugins broke off."""
        chosen = {r.id: r for r in self.chosen or ()}
        rollouts = [*self.done, *self.raw[len(self.done) :]]
        own = [r for r, before in zip(rollouts, self.raw, strict=True) if before.rank == rank]
        return [self._mark(r, chosen) for r in own if r is not None]

    def _mark(self, rollout: Rollout, chosen: dict[str, Rollout]) -> Rollout:
        if rollout.id in chosen:
            return replace(rollout, marks=chosen[rollout.id].marks)
        why = self.skipped.get(rollout.id)
        return replace(rollout, marks={**rollout.marks, "sinks": why}) if why else rollout

    def chosen_elsewhere(self, rank: int) -> list[dict[str, str]]:
        """Why rollouts of other ranks went to the sinks, for those ranks store them without knowing."""
        before = {r.id: r.marks for r in self.raw}
        own = [r for r in self.chosen or () if r.rank != rank]
        return [{"id": r.id, "why": _said(before.get(r.id, {}), r.marks)} for r in own]


def _said(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Marks that are new."""
    new = [f"{name}: {mark}" for name, mark in after.items() if before.get(name) != mark]
    return "; ".join(new) or "selected"


def distinct(rollouts: list[Rollout]) -> list[Rollout]:
    """Ids of their own also for rollouts which their host gave the same index, so that none hides another."""
    seen: Counter[str] = Counter()
    out = []
    for rollout in rollouts:
        times = seen[rollout.id]
        seen[rollout.id] += 1
        out.append(replace(rollout, id=f"{rollout.id}+{times}") if times else rollout)
    return out
