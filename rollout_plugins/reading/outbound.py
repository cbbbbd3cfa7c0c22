"""Pass stored rollouts through required plugins, such as redact, before they leave in a form other than traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rollout_hookspecs import Rollout, Run, Step

from rollout_plugins.engine.counters import Counters
from rollout_plugins.engine.discover import Plugins
from rollout_plugins.engine.dispatch import Dispatcher
from rollout_plugins.engine.outbound_filter import filter_rollout, filter_run
from rollout_plugins.engine.plugin_checks import is_required
from rollout_plugins.system.confidentiality import end_confidentiality, start_confidentiality

if TYPE_CHECKING:
    from rollout_plugins.reading.runs import StoredRun


class OutboundFilter:
    """A context manager that filters one run's rollouts through the installed and given required plugins."""

    def __init__(self, run: StoredRun, plugins: Sequence[Any]) -> None:
        self._stored_run = run.info
        self._dispatcher = Dispatcher(Plugins([*plugins]).manager, Counters())
        self.is_needed = bool(self._dispatcher.has_required)
        """Whether there is a required plugin, so that each rollout must be filtered."""

    def __enter__(self) -> OutboundFilter:  # noqa: PYI034 - Self needs Python 3.11
        if self.is_needed:
            start_confidentiality(self)
        self._notify("on_run_start")
        return self

    def __exit__(self, *_: object) -> None:
        self._notify("on_run_end")
        end_confidentiality(self)

    @cached_property
    def run(self) -> Run:
        """The run's facts as the plugins allow them."""
        return filter_run(self._dispatcher, self._stored_run)

    def filter(self, rollout: Rollout) -> Rollout | None:
        """Return the rollout as the plugins allow it, or None if one of them drops it or fails."""
        step = Step(split=rollout.split, step=rollout.step, generation=rollout.generation, rank=rollout.rank, seen=1)
        return filter_rollout(self._dispatcher, rollout, step)

    def _notify(self, hook: str) -> None:
        for implementation in self._dispatcher.implementations(hook):
            if is_required(implementation.plugin):
                self._dispatcher.call(implementation, hook, {"run": self._stored_run})
