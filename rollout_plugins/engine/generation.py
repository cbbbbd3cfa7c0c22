"""One generation batch: its rollouts, their way through the plugins, and what the store and each sink get of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rollout_hookspecs import Batch, Rollout, Run, Step, Trace

from rollout_plugins.content.fit import fitted
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.leaving import cleaned_changes, cleaned_names, cleaned_reasons


def build(run: Run, batch: Batch, number: int, name: str, counters: Counters) -> list[Rollout]:
    """A batch's rollouts, each with its place in the run and an id of its own, which begins with `name`."""
    return _distinct([_stamped(run, batch, number, name, _fitted(rollout, counters)) for rollout in batch.build()])


def _fitted(rollout: Rollout, counters: Counters) -> Rollout:
    made = fitted(rollout)
    if made is not rollout:
        counters.drop("unserialisable_field", sum(mark.startswith("lost:") for mark in made.marks))
    return made


def _stamped(run: Run, batch: Batch, number: int, name: str, rollout: Rollout) -> Rollout:
    rank = rollout.rank if batch.gathered else run.rank
    return replace(
        rollout,
        id=f"{name}.{rank}.{rollout.index}",
        run_id=run.id,
        attempt=run.attempt,
        split=batch.split,
        step=batch.step,
        generation=number,
        rank=rank,
        marks={**rollout.marks, "dataset": batch.dataset} if batch.dataset else rollout.marks,
    )


def _distinct(rollouts: list[Rollout]) -> list[Rollout]:
    """Where a host gave several rollouts the same index, their ids still differ, so that none hides another."""
    seen: Counter[str] = Counter()
    out = []
    for rollout in rollouts:
        times = seen[rollout.id]
        seen[rollout.id] += 1
        out.append(replace(rollout, id=f"{rollout.id}+{times}") if times else rollout)
    return out


def step_of(run: Run, batch: Batch, number: int, seen: int) -> Step:
    """What hooks are told of the batch."""
    return Step(
        split=batch.split,
        step=batch.step,
        generation=number,
        rank=run.rank,
        world_size=run.world_size,
        seen=seen,
        dataset=batch.dataset,
        evaluation=batch.evaluation,
        gathered=batch.gathered or run.world_size == 1,
    )


class Generation:
    """The rollouts of one batch, before and after the plugins."""

    def __init__(self, raw: Sequence[Rollout], step: Step) -> None:
        self.step = step
        self.metrics: dict[str, float] | None = None
        self._raw = raw
        self._done: list[Rollout | None] = []
        self._chosen: list[Rollout] | None = None
        self._skipped: dict[str, str] = {}
        self._is_clean = False
        self._streamed: list[Rollout] = []
        self._traces: dict[str, Trace | None] = {}

    def go_through(self, dispatcher: Dispatcher, scopes: Collection[str]) -> None:
        """Through the plugins, to sinks of these scopes. Called again for what is left when a plugin hung."""
        while len(self._done) < len(self._raw):
            self._done.append(dispatcher.rollout(self._raw[len(self._done)], self.step))
        kept = [rollout for rollout in self._done if rollout is not None]
        own = [rollout for rollout in kept if rollout.rank == self.step.rank]
        if self._chosen is None and scopes:
            self._chosen, self._skipped = dispatcher.select(kept, self.step)
        if self._chosen is not None and not self._is_clean:
            self._chosen = cleaned_changes(dispatcher, kept, self._chosen, self.step)
            self._skipped = cleaned_reasons(dispatcher, self._skipped)
            self._is_clean = True
        if self.metrics is None:
            self.metrics = cleaned_names(dispatcher, dispatcher.metrics(own, self.step))
        if "stream" in scopes:
            self._streamed = own
        for rollout in [*(self._chosen or ()), *self._streamed]:
            if rollout.id not in self._traces:
                self._traces[rollout.id] = dispatcher.trace(rollout)

    def traces_for(self, scope: str) -> list[Trace]:
        """What a sink of this scope gets: the selected rollouts, or this rank's whole generation."""
        rollouts = self._streamed if scope == "stream" else self._chosen or ()
        return [trace for r in rollouts if (trace := self._traces.get(r.id)) is not None]

    def forget_unseen(self, counters: Counters) -> None:
        """Drop what plugins did not get to: a required one must have seen whatever is stored."""
        if not self._is_clean:
            self._chosen, self._skipped = None, {}
        unseen = len(self._raw) - len(self._done)
        if unseen:
            counters.drop("not_seen_by_required_plugin", unseen)
        self._done += [None] * unseen

    def to_store(self) -> list[Rollout]:
        """This rank's rollouts, with who kept or skipped each; as they were made where plugins did not get to them."""
        chosen = {r.id: r for r in self._chosen or ()}
        rollouts = [*self._done, *self._raw[len(self._done) :]]
        own = [r for r, before in zip(rollouts, self._raw, strict=True) if before.rank == self.step.rank]
        return [self._marked(r, chosen) for r in own if r is not None]

    def _marked(self, rollout: Rollout, chosen: Mapping[str, Rollout]) -> Rollout:
        if rollout.id in chosen:
            return replace(rollout, marks=chosen[rollout.id].marks)
        why = self._skipped.get(rollout.id)
        return replace(rollout, marks={**rollout.marks, "sinks": why}) if why else rollout

    def chosen_elsewhere(self) -> list[dict[str, str]]:
        """Why rollouts of other ranks went to the sinks: those ranks store them without knowing."""
        before = {r.id: r.marks for r in self._raw}
        others = [r for r in self._chosen or () if r.rank != self.step.rank]
        return [{"id": r.id, "why": _new_marks(before.get(r.id, {}), r.marks)} for r in others]


def _new_marks(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    new = [f"{name}: {mark}" for name, mark in after.items() if before.get(name) != mark]
    return "; ".join(new) or "selected"
