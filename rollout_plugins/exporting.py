"""Send a stored run to a sink: later, again, or for the first time. What the sink already has is not sent twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout, Step

from rollout_plugins.errors import SetupError
from rollout_plugins.ledger import Ledger
from rollout_plugins.loading import Plugins
from rollout_plugins.trace import default_trace

if TYPE_CHECKING:
    from rollout_plugins.store.read import StoredRun

SINKS = ("trackio", "wandb", "jsonl", "scout")


@dataclass(frozen=True)
class Sent:
    """What an export did."""

    target: str
    """Where the rollouts went."""
    sent: int
    """Rollouts sent now."""
    had: int
    """Rollouts the target already had."""
    capped: int
    """Rollouts left out by the cap."""


def export(
    run: StoredRun,
    to: str | Any,
    *,
    cap: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
    options: dict[str, Any] | None = None,
    **filters: Any,
) -> Sent:
    """Send a run's rollouts to a sink, by name or as an instance; an interrupted export goes on where it stopped.

    cap: at most so many of each generation, whole groups first.
    filters: those of `StoredRun.rollouts`.
    """
    sink = _sink(to, options or {})
    limit = _cap(cap)
    sink.on_run_start(run.info)
    try:
        opened = getattr(sink, "open", None)
        if callable(opened):
            opened()
        ledger = Ledger(run.dir, sink.target)
        return _send(_generations(run, filters), sink, ledger, limit, progress)
    finally:
        sink.on_run_end(run.info)


def _sink(to: str | Any, options: dict[str, Any]) -> Any:
    if not isinstance(to, str):
        return to
    if to not in SINKS:
        raise SetupError(f"cannot export to {to!r}; accepted: parquet, {', '.join(SINKS)}")
    plugins = Plugins([to], config={to: options}, autoload=False)
    sink = plugins.manager.get_plugin(to)
    if sink is None:
        raise SetupError(f"{to!r} is disabled by ROLLOUT_PLUGINS_DISABLE")
    return sink


def _cap(limit: int | None) -> Any:
    if limit is None:
        return None
    from rollout_plugins.plugins.cap import Cap

    return Cap(limit)


def _send(
    generations: Iterator[tuple[Step, Sequence[Rollout]]],
    sink: Any,
    ledger: Ledger,
    limit: Any,
    progress: Callable[[int], object],
) -> Sent:
    already = ledger.read()
    sent = had = capped = 0
    for step, rollouts in generations:
        kept = rollouts if limit is None else limit.select_rollouts(rollouts, step)
        kept = rollouts if kept is None else kept
        new = [rollout for rollout in kept if rollout.id not in already]
        if new:
            sink.export_traces(tuple(map(default_trace, new)), step)
            ledger.add(rollout.id for rollout in new)
        sent, had, capped = sent + len(new), had + len(kept) - len(new), capped + len(rollouts) - len(kept)
        progress(sent + had + capped)
    return Sent(sink.target, sent, had, capped)


def _generations(run: StoredRun, filters: dict[str, Any]) -> Iterator[tuple[Step, Sequence[Rollout]]]:
    """The rollouts as they were made, one generation batch after the other."""
    world = run.info.world_size
    for (split, number), group in groupby(run.rollouts(**filters), key=lambda r: (r.split, r.generation)):
        rollouts = list(group)
        yield (
            Step(
                split=split,
                step=rollouts[0].step,
                generation=number,
                rank=run.info.rank,
                world_size=world,
                seen=len(rollouts),
                dataset=rollouts[0].marks.get("dataset", ""),
            ),
            rollouts,
        )
