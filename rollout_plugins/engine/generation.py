"""One generation batch: its rollouts, their way through the plugins, and what the store and each sink get of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rollout_hookspecs import Batch, Rollout, Run, Step, Trace

from rollout_plugins.content.conform import conform
from rollout_plugins.content.number_fields import replace_non_numbers_in_batch
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.content.tokens import TokenColumn
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.outbound_filter import filter_changes, filter_reasons, filter_value


def build(run: Run, batch: Batch, number: int, name: str, counters: Counters) -> RolloutColumns:
    """A batch's rollouts, each with its place in the run and an id of its own, which begins with `name`."""
    drafts = RolloutColumns.from_rollouts(batch.build())
    counters.drop("unserialisable_field", conform(drafts))
    with suppress(Exception):  # a list that cannot be read is the store's to replace; plugins see all records then
        prompts, completions, calls = drafts.messages("prompt"), drafts.messages("completion"), drafts.calls()
        drafts.set_columns(prompt=prompts, completion=completions, tool_calls=calls)
    count = len(drafts)
    ranks = list(drafts["rank"]) if batch.gathered else [run.rank] * count
    ids = _distinct(f"{name}.{rank}.{index}" for rank, index in zip(ranks, drafts["index"], strict=True))
    same = {"run_id": run.id, "attempt": run.attempt, "split": batch.split, "step": batch.step, "generation": number}
    drafts.set_columns(
        id=ids,
        rank=ranks,
        tokens=TokenColumn.of(drafts["tokens"]),
        **{field: [value] * count for field, value in same.items()},
    )
    if batch.dataset:
        drafts.set_columns(marks=[{**marks, "dataset": batch.dataset} for marks in drafts["marks"]])
    counters.drop("unserialisable_field", replace_non_numbers_in_batch(drafts))
    return drafts


def _distinct(ids: Iterable[str]) -> list[str]:
    """Where a host gave several rollouts the same index, their ids still differ, so that none hides another."""
    seen: Counter[str] = Counter()
    out = []
    for ident in ids:
        out.append(f"{ident}+{seen[ident]}" if seen[ident] else ident)
        seen[ident] += 1
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

    def __init__(self, raw: RolloutColumns, step: Step) -> None:
        self.step = step
        self.metrics: dict[str, float] | None = None
        self._raw = raw
        self._seen = 0
        self._changed: dict[int, Rollout | None] = {}
        """What plugins made of a rollout, by its place; None where one dropped it."""
        self._chosen: list[Rollout] | None = None
        self._skipped: dict[str, str] = {}
        self._is_clean = False
        self._streamed: Sequence[Rollout] = ()
        self._traces: dict[str, Trace | None] = {}

    def go_through(self, dispatcher: Dispatcher, scopes: Collection[str]) -> None:
        """Through the plugins, to sinks of these scopes. Called again for what is left when a plugin hung."""
        self._change(dispatcher)
        kept = self._kept(range(len(self._raw)))
        own = self._own()
        if self._chosen is None and scopes:
            self._chosen, self._skipped = dispatcher.select(kept, self.step)
        if self._chosen is not None and not self._is_clean:
            self._chosen = filter_changes(dispatcher, kept, self._chosen, self.step)
            self._skipped = filter_reasons(dispatcher, self._skipped)
            self._is_clean = True
        if self.metrics is None:
            self.metrics = filter_value(dispatcher, dispatcher.metrics(own, self.step), fallback={})
        if "stream" in scopes:
            self._streamed = own
        for rollout in [*(self._chosen or ()), *self._streamed]:
            if rollout.id not in self._traces:
                self._traces[rollout.id] = dispatcher.trace(rollout)

    def _change(self, dispatcher: Dispatcher) -> None:
        """Let plugins change each rollout. Where none of them wants to see it, none is made."""
        wanted = dispatcher.wanted(self._raw)
        # After a plugin hung, another thread goes on behind the last rollout that all plugins have seen.
        for place in wanted[bisect_left(wanted, self._seen) :]:
            before = self._raw[place]
            after = dispatcher.rollout(before, self.step)
            if after is not before:
                self._changed[place] = after
            self._seen = place + 1
        self._seen = len(self._raw)

    def _kept(self, places: Sequence[int]) -> Sequence[Rollout]:
        """Those that no plugin dropped, as they are now. Where all are as they were, none needs to be made."""
        if not self._changed and len(places) == len(self._raw):
            return self._raw
        found = (self._changed[place] if place in self._changed else self._raw[place] for place in places)
        return [rollout for rollout in found if rollout is not None]

    def _own(self) -> Sequence[Rollout]:
        """This rank's rollouts of them."""
        return self._kept([place for place, rank in enumerate(self._raw["rank"]) if rank == self.step.rank])

    def traces_for(self, scope: str) -> list[Trace]:
        """What a sink of this scope gets: the selected rollouts, or this rank's whole generation."""
        rollouts = self._streamed if scope == "stream" else self._chosen or ()
        return [trace for r in rollouts if (trace := self._traces.get(r.id)) is not None]

    def forget_unseen(self, counters: Counters) -> None:
        """Drop what plugins did not get to: a required one must have seen whatever is stored."""
        if not self._is_clean:
            self._chosen, self._skipped = None, {}
        unseen = range(self._seen, len(self._raw))
        if unseen:
            counters.drop("not_seen_by_required_plugin", len(unseen))
        self._changed.update(dict.fromkeys(unseen))
        self._seen = len(self._raw)

    def to_store(self) -> Sequence[Rollout]:
        """This rank's rollouts, with who kept or skipped each; as they were made where plugins did not get to them."""
        own = self._own()
        if not self._chosen and not self._skipped:
            return own
        chosen = {r.id: r for r in self._chosen or ()}
        return [self._marked(r, chosen) for r in own]

    def _marked(self, rollout: Rollout, chosen: Mapping[str, Rollout]) -> Rollout:
        if rollout.id in chosen:
            return replace(rollout, marks=chosen[rollout.id].marks)
        why = self._skipped.get(rollout.id)
        return replace(rollout, marks={**rollout.marks, "sinks": why}) if why else rollout

    def chosen_elsewhere(self) -> list[dict[str, str]]:
        """Why rollouts of other ranks went to the sinks: those ranks store them without knowing."""
        others = [r for r in self._chosen or () if r.rank != self.step.rank]
        before = {r.id: r.marks for r in self._raw} if others else {}
        return [{"id": r.id, "why": _new_marks(before.get(r.id, {}), r.marks)} for r in others]


def _new_marks(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    new = [f"{name}: {mark}" for name, mark in after.items() if before.get(name) != mark]
    return "; ".join(new) or "selected"
