"""Send a stored run to a sink: later, again, or for the first time. What the sink already has is not sent twice.

Rollouts go the way that they go while training: what `required` plugins let leave, in the format of the first plugin
that gives one, on the sink's own thread. Other hooks are not called: their work is done, and stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from rollout_hookspecs import Rollout, Run, Step

from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine import env_vars as environment
from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.delivery import as_sink
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.error_text import error_with_place
from rollout_plugins.engine.installed import DEFAULT_TRACE, discover, known_sinks, name_of
from rollout_plugins.engine.outbound_filter import filter_rollout, filter_run
from rollout_plugins.engine.outbox import Outbox
from rollout_plugins.engine.plugin_checks import is_required
from rollout_plugins.errors import RolloutPluginsError, RunError, SetupError, suggest
from rollout_plugins.system.confidentiality import start_confidentiality

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun

logger = logging.getLogger("rollout_plugins")

PATIENCE_SECONDS = 60.0
"""How long an export waits while another process sends to the same place."""
HANG_SECONDS = 600.0
"""How long a sink may take over one generation, unless ROLLOUT_PLUGINS_HANG_SECONDS says otherwise."""
END_SECONDS = 20.0
"""How long it may take to finish after an error."""


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
    """Rollouts left out: by the cap, a limit of the sink's own, or a `required` plugin."""
    unconfirmed: int = 0
    """Of those sent, rollouts about which the sink said nothing: its `export_traces` returned None."""


def export(
    run: StoredRun,
    to: str | Any,
    *,
    cap: int | None = None,
    plugins: Sequence[Any] = (),
    progress: Callable[[int], object] = lambda _: None,
    options: Mapping[str, Any] | None = None,
    **filters: Any,
) -> Sent:
    """Send a run's rollouts to a sink, by name or as an instance; an interrupted export goes on where it stopped.

    A sink with `scope="rank"` is sent each rank's rollouts as while training: as a run of that rank.

    cap: at most this many rollouts of each generation, whole groups first.
    plugins: those that format or search what is sent, in addition to the installed ones: `["redact"]`.
    options: those of a sink that is given by name.
    filters: those of `StoredRun.rollouts`.
    """
    choose, is_split = _chooser(cap), cap is None and filters.get("limit") is None
    sink, dispatcher = _loaded(to, plugins, options or {})
    targets, sent, had, done, unconfirmed = [], 0, 0, 0, 0
    for rank in _ranks(run, sink, filters):
        facts = run.info if rank is None else replace(run.info, rank=rank)
        own = {**filters, "rank": rank} if rank is not None and is_split else filters
        with _sending(sink, dispatcher, facts) as sending:
            for step, rollouts in _generations(run, facts, own):
                chosen = choose(rollouts, step)
                sending.send(_of(rank, chosen), step)
                done += len(_of(rank, rollouts))
                progress(done)
            delivered = sending.outbox.delivered
            sent, had = sent + delivered.sent, had + delivered.had
            unconfirmed += delivered.unconfirmed
            targets.append(sending.target)
    return Sent(", ".join(dict.fromkeys(targets)), sent, had, done - sent - had, unconfirmed)


def _ranks(run: StoredRun, sink: Any, filters: Mapping[str, Any]) -> Sequence[int | None]:
    """None: all rollouts go to one place. A sink that has a place for each rank is given one after the other."""
    if as_sink(sink).scope != "rank":
        return [None]
    found = {rank for table in run.batches(["rank"], **filters) for rank in table["rank"].unique().to_pylist()}
    return sorted(found) or [run.info.rank]


def _of(rank: int | None, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    return rollouts if rank is None else [rollout for rollout in rollouts if rollout.rank == rank]


@contextmanager
def _sending(sink: Any, dispatcher: Dispatcher, run: Run) -> Iterator[_Sending]:
    sending = _Sending(sink, dispatcher, run)
    try:
        sending.start()
        yield sending
    except BaseException:
        sending.end(0.0 if sending.is_stream else min(sending.seconds, END_SECONDS))
        raise
    sending.end(sending.seconds)
    sending.check()


class _Sending:
    """One sink, and the plugins that see what it is sent."""

    def __init__(self, sink: Any, dispatcher: Dispatcher, run: Run) -> None:
        self._run = run
        self._sink, self._dispatcher = sink, dispatcher
        limit = environment.seconds("HANG_SECONDS", HANG_SECONDS)
        self.seconds = threading.TIMEOUT_MAX if self.is_stream else limit  # a reader may take as long as it likes
        self._errors: list[BaseException] = []
        self.outbox = Outbox(
            self._sink, self._dispatcher, Counters(), "global", self._errors.append, patience=PATIENCE_SECONDS
        )

    @property
    def is_stream(self) -> bool:
        return self.target.endswith(":-")

    @property
    def target(self) -> str:
        found = as_sink(self._sink).target
        return found if found and isinstance(found, str) else type(self._sink).__name__

    def start(self) -> None:
        if self._dispatcher.has_required:
            start_confidentiality(self)
        self._tell("on_run_start")
        self._run = filter_run(self._dispatcher, self._run)
        self.outbox.start_run(self._run)
        self._settle()

    def send(self, rollouts: Sequence[Rollout], step: Step) -> None:
        """Send one generation, and wait until it is there."""
        seen = [filter_rollout(self._dispatcher, rollout, step) for rollout in rollouts]
        traces = [self._dispatcher.trace(rollout) for rollout in seen if rollout is not None]
        self.outbox.send([trace for trace in traces if trace is not None], step)
        self._settle()

    def end(self, seconds: float) -> None:
        """Tell everybody. The sink has that many seconds to finish, unless it hangs already."""
        if not self.outbox.is_stuck:
            self.outbox.end_run(self._run)
        self.outbox.close(time.monotonic() + seconds)
        self._tell("on_run_end")

    def _tell(self, hook: str) -> None:
        """Tell the plugins that take part. The sink is told on its own thread."""
        formats = self._dispatcher.plugins_with("format_trace")
        for impl in self._dispatcher.implementations(hook):
            takes_part = is_required(impl.plugin) or any(impl.plugin is plugin for plugin in formats)
            if takes_part and impl.plugin is not self._sink:
                self._dispatcher.call(impl, hook, {"run": self._run})

    def _settle(self) -> None:
        self.outbox.drain(time.monotonic() + self.seconds)
        self.check()

    def check(self) -> None:
        """Raise what the sink raised, or that it does not come back."""
        if self._errors:
            raise self._told(self._errors.pop())  # without a name: its traceback would keep it, and the run, alive
        name = self.outbox.name
        if self.outbox.is_stuck:
            limit = f"{self.seconds:g} s (ROLLOUT_PLUGINS_HANG_SECONDS sets the limit)"
            raise RunError(f"sink {name!r} did not return within {limit} {self._rest}")
        if name in self._dispatcher.removed:
            raise RunError(f"sink {name!r} {self._dispatcher.removed[name]}, {self._rest}")

    def _told(self, error: BaseException) -> Exception:
        """The sink's error, once it is told how far the export came."""
        if not isinstance(error, Exception):  # such as SystemExit, which would end the process without a word
            return RunError(f"sink {self.outbox.name!r} raised {error_with_place(error)} {self._rest}")
        if not isinstance(error, (RolloutPluginsError, BrokenPipeError)):
            logger.warning("sink %r raised %s %s", self.outbox.name, error_with_place(error), self._rest)
        return error

    @property
    def _rest(self) -> str:
        return f"after {self.outbox.delivered.sent} rollouts were sent; export again for the rest"


def _loaded(to: str | Any, plugins: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, Dispatcher]:
    """The sink, and the way to it and to all plugins that are installed or given."""
    if isinstance(to, str) and to not in discover():
        raise SetupError(f"cannot export to {to!r}; {suggest(to, known_sinks())}")
    if options and not isinstance(to, str):
        raise SetupError("options are for a sink that is given by name; give them to the instance")
    loaded = Plugins([to, *(plugins or ())], config={to: options} if options else {})
    name = to if isinstance(to, str) else name_of(to, loaded.installed)
    by_name = {found.name: found.plugin for found in loaded.chosen}
    sink = by_name.get(name) or next((plugin for plugin in by_name.values() if to in (plugin, type(plugin))), None)
    if sink is None:
        raise SetupError(f"{name!r} is disabled by ROLLOUT_PLUGINS_DISABLE")
    loaded.manager.register(DefaultTrace(), name=DEFAULT_TRACE)
    dispatcher = Dispatcher(loaded.manager, Counters())
    if not any(sink is plugin for plugin in dispatcher.plugins_with("export_traces")):
        raise SetupError(f"{name!r} is not a sink: it does not implement export_traces")
    return sink, dispatcher


def _chooser(cap: int | None) -> Callable[[Sequence[Rollout], Step], Sequence[Rollout]]:
    """A function that chooses at most `cap` rollouts of one generation."""
    if cap is None:
        return lambda rollouts, _: rollouts
    plugin = Plugins(["cap"], config={"cap": {"max_per_step": cap}}, autoload=False).manager.get_plugin("cap")
    if plugin is None:
        raise SetupError("cap= needs the plugin 'cap', which ROLLOUT_PLUGINS_DISABLE names; take it out there")

    def choose(rollouts: Sequence[Rollout], step: Step) -> Sequence[Rollout]:
        plugin.on_run_start(Run(id=""))  # else it would count a step, which may have several generations
        chosen: Sequence[Rollout] = plugin.select_rollouts(rollouts, step)
        return chosen

    return choose


def _generations(run: StoredRun, facts: Run, filters: Mapping[str, Any]) -> Iterator[tuple[Step, Sequence[Rollout]]]:
    """The rollouts as they were made, one generation batch after the other.

    A rank that evaluates alone counts further than the others, so one number may be that of several steps.
    """
    made = groupby(run.rollouts(**filters), key=lambda r: (r.split, r.attempt, r.generation))
    for (split, _, number), group in made:
        for step, of_step in groupby(sorted(group, key=lambda r: r.step), key=lambda r: r.step):
            rollouts = list(of_step)
            yield _step(facts, split, step, number, rollouts), rollouts


def _step(run: Run, split: Literal["train", "eval"], step: int, number: int, rollouts: Sequence[Rollout]) -> Step:
    return Step(
        split=split,
        step=step,
        generation=number,
        rank=run.rank,
        world_size=run.world_size,
        seen=len(rollouts),
        dataset=rollouts[0].marks.get("dataset", ""),
    )
