"""Send the rollouts of a stored run to a sink. Rollouts that the sink already has are not sent again.

As in training, `required` plugins filter each rollout, the first plugin with a trace format formats it, and the sink
runs on its own thread. Other hooks are not called, because their results are stored with the rollouts.
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
"""How long an export waits while another process sends to the same destination."""
HANG_SECONDS = 600.0
"""How long a sink may take for one generation. ROLLOUT_PLUGINS_HANG_SECONDS overrides it."""
END_SECONDS = 20.0
"""How long a sink may take to finish after an error."""


@dataclass(frozen=True)
class Sent:
    """The result of an export."""

    target: str
    """The destination of the rollouts."""
    sent: int
    """The number of rollouts sent by this export."""
    had: int
    """The number of rollouts that the destination already had."""
    capped: int
    """The number of rollouts left out by the cap, a limit of the sink, or a `required` plugin."""
    unconfirmed: int = 0
    """The number of sent rollouts that the sink neither confirmed nor rejected: its `export_traces` returned None."""


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
    """Send a run's rollouts to a sink, given by name or as an object.

    A repeated export continues where the last stopped.

    A sink with `scope="rank"` receives the rollouts of each rank as a run of that rank, as it does in training.

    cap: at most this many rollouts of each generation, whole groups first.

    plugins: plugins that format or filter what is sent, besides the installed ones: `["redact"]`.

    options: options of a sink that is given by name.

    filters: the filters of `StoredRun.rollouts`.
    """
    choose, is_split = _make_chooser(cap), cap is None and filters.get("limit") is None
    sink, dispatcher = _load_sink(to, plugins, options or {})
    targets, sent, had, done, unconfirmed = [], 0, 0, 0, 0
    for rank in _ranks(run, sink, filters):
        facts = run.info if rank is None else replace(run.info, rank=rank)
        own = {**filters, "rank": rank} if rank is not None and is_split else filters
        with _exporting(sink, dispatcher, facts) as sending:
            for step, rollouts in _read_generations(run, facts, own):
                chosen = choose(rollouts, step)
                sending.send(_of_rank(rank, chosen), step)
                done += len(_of_rank(rank, rollouts))
                progress(done)
            delivered = sending.outbox.delivered
            sent, had = sent + delivered.sent, had + delivered.had
            unconfirmed += delivered.unconfirmed
            targets.append(sending.target)
    return Sent(", ".join(dict.fromkeys(targets)), sent, had, done - sent - had, unconfirmed)


def _ranks(run: StoredRun, sink: Any, filters: Mapping[str, Any]) -> Sequence[int | None]:
    """Return the ranks to export one after the other, or `[None]` if all rollouts go to one destination."""
    if as_sink(sink).scope != "rank":
        return [None]
    ranks = {rank for table in run.batches(["rank"], **filters) for rank in table["rank"].unique().to_pylist()}
    return sorted(ranks) or [run.info.rank]


def _of_rank(rank: int | None, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    return rollouts if rank is None else [rollout for rollout in rollouts if rollout.rank == rank]


@contextmanager
def _exporting(sink: Any, dispatcher: Dispatcher, run: Run) -> Iterator[_Export]:
    sending = _Export(sink, dispatcher, run)
    try:
        sending.start()
        yield sending
    except BaseException:
        sending.end(0.0 if sending.is_stream else min(sending.seconds, END_SECONDS))
        raise
    sending.end(sending.seconds)
    sending.check()


class _Export:
    """An export to one sink: the sink, and the plugins that filter and format its rollouts."""

    def __init__(self, sink: Any, dispatcher: Dispatcher, run: Run) -> None:
        self._run = run
        self._sink, self._dispatcher = sink, dispatcher
        limit = environment.seconds("HANG_SECONDS", HANG_SECONDS)
        self.seconds = (
            threading.TIMEOUT_MAX if self.is_stream else limit
        )  # a process that reads the stream may be arbitrarily slow
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
        self._call_hook("on_run_start")
        self._run = filter_run(self._dispatcher, self._run)
        self.outbox.start_run(self._run)
        self._settle()

    def send(self, rollouts: Sequence[Rollout], step: Step) -> None:
        """Send one generation, and wait until the sink has handled it."""
        seen = [filter_rollout(self._dispatcher, rollout, step) for rollout in rollouts]
        traces = [self._dispatcher.trace(rollout) for rollout in seen if rollout is not None]
        self.outbox.send([trace for trace in traces if trace is not None], step)
        self._settle()

    def end(self, seconds: float) -> None:
        """End the export; the sink has `seconds` to finish, unless it already hangs."""
        if not self.outbox.is_stuck:
            self.outbox.end_run(self._run)
        self.outbox.close(time.monotonic() + seconds)
        self._call_hook("on_run_end")

    def _call_hook(self, hook: str) -> None:
        """Call a hook of the plugins that take part. The sink's own hooks run on its thread."""
        formats = self._dispatcher.plugins_with("format_trace")
        for impl in self._dispatcher.implementations(hook):
            takes_part = is_required(impl.plugin) or any(impl.plugin is plugin for plugin in formats)
            if takes_part and impl.plugin is not self._sink:
                self._dispatcher.call(impl, hook, {"run": self._run})

    def _settle(self) -> None:
        self.outbox.drain(time.monotonic() + self.seconds)
        self.check()

    def check(self) -> None:
        """Raise the sink's error, or an error if the sink hangs or was disabled."""
        if self._errors:
            # A name for this error would keep its traceback alive, and with it the run.
            raise self._describe(self._errors.pop())
        name = self.outbox.name
        if self.outbox.is_stuck:
            limit = f"{self.seconds:g} s (ROLLOUT_PLUGINS_HANG_SECONDS sets the limit)"
            raise RunError(f"sink {name!r} did not return within {limit} {self._progress}")
        if name in self._dispatcher.removed:
            raise RunError(f"sink {name!r} {self._dispatcher.removed[name]}, {self._progress}")

    def _describe(self, error: BaseException) -> Exception:
        """Return the error to raise for a sink's error, after logging how many rollouts were sent."""
        if not isinstance(error, Exception):  # for example SystemExit, which would end the process without a message
            return RunError(f"sink {self.outbox.name!r} raised {error_with_place(error)} {self._progress}")
        if not isinstance(error, (RolloutPluginsError, BrokenPipeError)):
            logger.warning("sink %r raised %s %s", self.outbox.name, error_with_place(error), self._progress)
        return error

    @property
    def _progress(self) -> str:
        return f"after {self.outbox.delivered.sent} rollouts were sent; export again for the rest"


def _load_sink(to: str | Any, plugins: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, Dispatcher]:
    """Load the sink and all other plugins; return the sink and a dispatcher for their hooks."""
    if isinstance(to, str) and to not in discover():
        raise SetupError(f"cannot export to {to!r}; {suggest(to, known_sinks())}")
    if options and not isinstance(to, str):
        raise SetupError("options are for a sink that is given by name; give them to the instance")
    all_plugins = Plugins([to, *(plugins or ())], config={to: options} if options else {})
    name = to if isinstance(to, str) else name_of(to, all_plugins.installed)
    by_name = {found.name: found.plugin for found in all_plugins.chosen}
    sink = by_name.get(name) or next((plugin for plugin in by_name.values() if to in (plugin, type(plugin))), None)
    if sink is None:
        raise SetupError(f"{name!r} is disabled by ROLLOUT_PLUGINS_DISABLE")
    all_plugins.manager.register(DefaultTrace(), name=DEFAULT_TRACE)
    dispatcher = Dispatcher(all_plugins.manager, Counters())
    if not any(sink is plugin for plugin in dispatcher.plugins_with("export_traces")):
        raise SetupError(f"{name!r} is not a sink: it does not implement export_traces")
    return sink, dispatcher


def _make_chooser(cap: int | None) -> Callable[[Sequence[Rollout], Step], Sequence[Rollout]]:
    """Return a function that selects at most `cap` rollouts of one generation."""
    if cap is None:
        return lambda rollouts, _: rollouts
    plugin = Plugins(["cap"], config={"cap": {"max_per_step": cap}}, autoload=False).manager.get_plugin("cap")
    if plugin is None:
        raise SetupError("cap= needs the plugin 'cap', which ROLLOUT_PLUGINS_DISABLE names; take it out there")

    def choose(rollouts: Sequence[Rollout], step: Step) -> Sequence[Rollout]:
        # Without this, the cap would count by step, and a step may have several generations.
        plugin.on_run_start(Run(id=""))
        chosen: Sequence[Rollout] = plugin.select_rollouts(rollouts, step)
        return chosen

    return choose


def _read_generations(
    run: StoredRun, facts: Run, filters: Mapping[str, Any]
) -> Iterator[tuple[Step, Sequence[Rollout]]]:
    """Yield each generation batch with its rollouts, in the order in which they were recorded.

    A rank that evaluates alone has more generations than the others, so one generation number may occur in several
    steps.
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
