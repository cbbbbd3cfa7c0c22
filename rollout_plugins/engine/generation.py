"""Take one generation batch through the plugins, and select what the store and each sink receive."""

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
    """Return a batch's rollouts, with their place in the run and unique ids that begin with `name`."""
    rollouts = RolloutColumns.from_rollouts(batch.build())
    counters.drop("unserialisable_field", conform(rollouts))
    with suppress(Exception):  # the store replaces a list that cannot be read
        prompts, completions, calls = rollouts.messages("prompt"), rollouts.messages("completion"), rollouts.calls()
        rollouts.set_columns(prompt=prompts, completion=completions, tool_calls=calls)
    count = len(rollouts)
    ranks = list(rollouts["rank"]) if batch.gathered else [run.rank] * count
    ids = _make_unique(f"{name}.{rank}.{index}" for rank, index in zip(ranks, rollouts["index"], strict=True))
    shared = {"run_id": run.id, "attempt": run.attempt, "split": batch.split, "step": batch.step, "generation": number}
    rollouts.set_columns(
        id=ids,
        rank=ranks,
        tokens=TokenColumn.of(rollouts["tokens"]),
        **{field: [value] * count for field, value in shared.items()},
    )
    if batch.dataset:
        rollouts.set_columns(marks=[{**marks, "dataset": batch.dataset} for marks in rollouts["marks"]])
    counters.drop("unserialisable_field", replace_non_numbers_in_batch(rollouts))
    return rollouts


def _make_unique(ids: Iterable[str]) -> list[str]:
    """Return ids that all differ, even if a host gave several rollouts the same index."""
    counts: Counter[str] = Counter()
    unique = []
    for rollout_id in ids:
        unique.append(f"{rollout_id}+{counts[rollout_id]}" if counts[rollout_id] else rollout_id)
        counts[rollout_id] += 1
    return unique


def step_of(run: Run, batch: Batch, number: int, count: int) -> Step:
    """Return the `Step` that hooks receive with the batch."""
    return Step(
        split=batch.split,
        step=batch.step,
        generation=number,
        rank=run.rank,
        world_size=run.world_size,
        seen=count,
        dataset=batch.dataset,
        evaluation=batch.evaluation,
        gathered=batch.gathered or run.world_size == 1,
    )


class Generation:
    """The rollouts of one batch, before and after they passed through the plugins."""

    def __init__(self, raw: RolloutColumns, step: Step) -> None:
        self.step = step
        self.metrics: dict[str, float] | None = None
        self._raw = raw
        self._processed = 0
        self._changed: dict[int, Rollout | None] = {}
        """Rollouts that plugins changed, by index; None if a plugin dropped the rollout."""
        self._selected: list[Rollout] | None = None
        self._skipped: dict[str, str] = {}
        self._is_filtered = False
        self._streamed: Sequence[Rollout] = ()
        self._traces: dict[str, Trace | None] = {}

    def go_through(self, dispatcher: Dispatcher, scopes: Collection[str]) -> None:
        """Run all plugins, for sinks of these scopes. Called again for the remaining work if a plugin hung."""
        self._change(dispatcher)
        rollouts = self._kept(range(len(self._raw)))
        own = self._own()
        if self._selected is None and scopes:
            self._selected, self._skipped = dispatcher.select(rollouts, self.step)
        if self._selected is not None and not self._is_filtered:
            self._selected = filter_changes(dispatcher, rollouts, self._selected, self.step)
            self._skipped = filter_reasons(dispatcher, self._skipped)
            self._is_filtered = True
        if self.metrics is None:
            self.metrics = filter_value(dispatcher, dispatcher.metrics(own, self.step), fallback={})
        if "stream" in scopes:
            self._streamed = own
        for rollout in [*(self._selected or ()), *self._streamed]:
            if rollout.id not in self._traces:
                self._traces[rollout.id] = dispatcher.trace(rollout)

    def _change(self, dispatcher: Dispatcher) -> None:
        """Let plugins change each rollout. No record is created for a rollout that no plugin wants."""
        indices = dispatcher.indices_to_process(self._raw)
        # After a plugin hung, another thread continues after the last rollout that all plugins have processed.
        for index in indices[bisect_left(indices, self._processed) :]:
            before = self._raw[index]
            after = dispatcher.rollout(before, self.step)
            if after is not before:
                self._changed[index] = after
            self._processed = index + 1
        self._processed = len(self._raw)

    def _kept(self, indices: Sequence[int]) -> Sequence[Rollout]:
        """Return the rollouts at `indices` that no plugin dropped, in their current form.

        If no rollout changed, return the columns, so that no record is created.
        """
        if not self._changed and len(indices) == len(self._raw):
            return self._raw
        rollouts = (self._changed[index] if index in self._changed else self._raw[index] for index in indices)
        return [rollout for rollout in rollouts if rollout is not None]

    def _own(self) -> Sequence[Rollout]:
        """Return those of this rank."""
        return self._kept([index for index, rank in enumerate(self._raw["rank"]) if rank == self.step.rank])

    def traces_for(self, scope: str) -> list[Trace]:
        """Return the traces for a sink of this scope: the selected rollouts, or all of this rank."""
        rollouts = self._streamed if scope == "stream" else self._selected or ()
        return [trace for r in rollouts if (trace := self._traces.get(r.id)) is not None]

    def forget_unseen(self, counters: Counters) -> None:
        """Drop rollouts that the plugins did not process; a required plugin must see whatever is stored."""
        if not self._is_filtered:
            self._selected, self._skipped = None, {}
        unseen = range(self._processed, len(self._raw))
        if unseen:
            counters.drop("not_seen_by_required_plugin", len(unseen))
        self._changed.update(dict.fromkeys(unseen))
        self._processed = len(self._raw)

    def to_store(self) -> Sequence[Rollout]:
        """Return this rank's rollouts, marked with why each was selected or skipped.

        A rollout that the plugins did not process is returned as the host recorded it.
        """
        own = self._own()
        if not self._selected and not self._skipped:
            return own
        selected_by_id = {r.id: r for r in self._selected or ()}
        return [self._marked(r, selected_by_id) for r in own]

    def _marked(self, rollout: Rollout, selected_by_id: Mapping[str, Rollout]) -> Rollout:
        if rollout.id in selected_by_id:
            return replace(rollout, marks=selected_by_id[rollout.id].marks)
        reason = self._skipped.get(rollout.id)
        return replace(rollout, marks={**rollout.marks, "sinks": reason}) if reason else rollout

    def reasons_for_other_ranks(self) -> list[dict[str, str]]:
        """Return why rollouts of other ranks were selected, which those ranks do not know when they store them."""
        others = [r for r in self._selected or () if r.rank != self.step.rank]
        before = {r.id: r.marks for r in self._raw} if others else {}
        return [{"id": r.id, "why": _new_marks(before.get(r.id, {}), r.marks)} for r in others]


def _new_marks(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    new = [f"{name}: {mark}" for name, mark in after.items() if before.get(name) != mark]
    return "; ".join(new) or "selected"
