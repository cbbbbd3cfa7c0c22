"""Send a stored run to a sink: later, again, or for the first time. What the sink already has is not sent twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout, Step

from rollout_plugins.content.trace import default_trace
from rollout_plugins.engine.delivery import Delivery
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.errors import SetupError

if TYPE_CHECKING:
    from rollout_plugins.store.read import StoredRun

SINKS = ("trackio", "wandb", "jsonl", "scout")
PATIENCE_SECONDS = 60.0
"""How long an export waits while another process sends to the same place."""


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
    """Rollouts left out: by the cap, or by a limit of the sink's own."""


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
    _capped((), Step(), cap)  # one that makes no sense is refused before anything is opened
    with closing(Delivery(sink, run.dir, patience=PATIENCE_SECONDS)) as delivery:
        _call(sink, "on_run_start", run=run.info)
        try:
            delivery.ask()
            return _send(_generations(run, filters), sink, delivery, cap, progress)
        finally:
            _call(sink, "on_run_end", run=run.info)


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


def _capped(rollouts: Sequence[Rollout], step: Step, cap: int | None) -> Sequence[Rollout]:
    """At most so many of one generation. The cap of a training counts steps, which may have several."""
    if cap is None:
        return rollouts
    plugin = Plugins(["cap"], config={"cap": {"max_per_step": cap}}, autoload=False).manager.get_plugin("cap")
    if plugin is None:
        raise SetupError("cap= needs the plugin 'cap', which ROLLOUT_PLUGINS_DISABLE names; take it out there")
    return plugin.select_rollouts(rollouts, step) or rollouts


def _send(
    generations: Iterator[tuple[Step, Sequence[Rollout]]],
    sink: Any,
    delivery: Delivery,
    cap: int | None,
    progress: Callable[[int], object],
) -> Sent:
    sent = had = left = 0
    for step, rollouts in generations:
        kept = {rollout.id: rollout for rollout in _capped(rollouts, step, cap)}
        done = delivery.send(list(kept), partial(_export, sink, step, kept))
        sent, had = sent + done.sent, had + done.had
        left += len(rollouts) - done.sent - done.had
        progress(sent + had + left)
    return Sent(getattr(sink, "target", type(sink).__name__), sent, had, left)


def _export(sink: Any, step: Step, rollouts: Mapping[str, Rollout], ids: Collection[str]) -> Any:
    return _call(sink, "export_traces", traces=tuple(default_trace(rollouts[ident]) for ident in ids), step=step)


def _call(sink: Any, hook: str, **arguments: Any) -> Any:
    """Call a hook, if the sink has it, with the arguments it asks for."""
    function = getattr(sink, hook, None)
    if function is None:
        return None
    wanted = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in wanted})


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
