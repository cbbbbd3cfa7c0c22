"""Calls to every hook, with what each one passes on to the next plugin. The order is pluggy's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from rollout_hookspecs import Drop, Host, Rollout, Step, ToolCall, Trace

from rollout_plugins.content.number_fields import replace_non_numbers
from rollout_plugins.content.rollout_columns import RolloutColumns
from rollout_plugins.content.trace import DefaultTrace
from rollout_plugins.engine import hook_results as returned
from rollout_plugins.engine.isolation import PluginCalls
from rollout_plugins.engine.outbound_filter import filter_trace

logger = logging.getLogger("rollout_plugins")


class Dispatcher(PluginCalls):
    """Typed calls to every hook."""

    def wanted(self, rollouts: RolloutColumns) -> Sequence[int]:
        """The places of the rollouts that some plugin wants to see: all, unless none asks for those of text alone."""
        implementations = [*self.implementations("on_rollout"), *self.implementations("on_tool_call")]
        if self.lacking or any(not getattr(impl.plugin, "skips_text", False) for impl in implementations):
            return range(len(rollouts))
        if not implementations:
            return ()
        return rollouts.beyond_text()

    def rollout(self, rollout: Rollout, step: Step) -> Rollout | None:
        """Fold `on_tool_call`, then `on_rollout`; None when a plugin dropped it, or one that must see it is off."""
        if self.lacking:
            self.counters.drop(f"dropped_by:{self.lacking}")
            return None
        arguments = {"rollout": self._fold_tool_calls(rollout, step), "step": step}
        changed: Rollout | None = self._fold("on_rollout", arguments, returned.replacement(rollout.id), "dropped_by")
        return changed if changed is rollout or changed is None else self._with_numbers(changed)

    def _with_numbers(self, rollout: Rollout) -> Rollout:
        """Empty and count what plugins put into number fields besides numbers, as the store would."""
        fitting = replace_non_numbers(rollout)
        self.counters.drop("unserialisable_field", len(fitting.marks) - len(rollout.marks))
        return fitting

    def _fold_tool_calls(self, rollout: Rollout, step: Step) -> Rollout:
        if not rollout.tool_calls or not self.implementations("on_tool_call"):
            return rollout
        given = {"rollout": rollout, "step": step}
        read = returned.one(ToolCall)
        calls = [
            self._fold("on_tool_call", {"tool_call": call, **given}, read, "tool_calls_dropped_by")
            for call in rollout.tool_calls
        ]
        return replace(rollout, tool_calls=tuple(call for call in calls if call is not None))

    def _fold(self, hook: str, arguments: dict[str, Any], read: Callable[[Any], Any], counted: str) -> Any:
        """What the plugins make of the first argument, one after the other; None when one of them drops it."""
        first = next(iter(arguments))
        try:
            for _, result in self.results(hook, arguments, read):
                arguments[first] = result
        except Drop as drop:
            self.counters.drop(f"{counted}:{self.dropped_by}")
            logger.debug("dropped by %s: %s", self.dropped_by, drop)
            return None
        return arguments[first]

    def select(self, rollouts: Sequence[Rollout], step: Step) -> tuple[list[Rollout], dict[str, str]]:
        """Fold `select_rollouts`. Also who left each of the others out, and why."""
        chosen = list(rollouts)
        skipped: dict[str, tuple[str, str]] = {}
        arguments: dict[str, Any] = {"rollouts": tuple(chosen), "step": step}

        given = set(map(id, rollouts))

        def read(result: Any) -> list[Rollout] | None:
            selected = returned.selection(result, arguments["rollouts"])
            return selected and [r if id(r) in given else replace_non_numbers(r) for r in selected]

        for impl, kept in self.results("select_rollouts", arguments, read):
            ids = {r.id for r in kept}
            gone = [r.id for r in chosen if r.id not in ids]
            reasons = returned.skip_reasons(impl.plugin) if gone else {}
            skipped.update((ident, (impl.plugin_name, reasons.get(ident, "not selected"))) for ident in gone)
            arguments["rollouts"], chosen = tuple(kept), kept
        for name, _ in skipped.values():
            self.counters.skip(name)
        return chosen, {ident: f"skipped by {name}: {why}" for ident, (name, why) in skipped.items()}

    def metrics(self, rollouts: Sequence[Rollout], step: Step) -> dict[str, float]:
        """Numbers of all plugins, for the log. What is not a number is left out, as that plugin's failure."""
        numbers: dict[str, float] = {}
        is_verbose = self.is_verbose
        wanted = {
            name for impl in self.implementations("rollout_metrics") for name in (*impl.argnames, *impl.kwargnames)
        }
        arguments: dict[str, Any] = {"columns": RolloutColumns.from_rollouts(rollouts), "step": step}
        if "rollouts" in wanted:  # making the records costs more than most numbers do
            arguments["rollouts"] = tuple(rollouts)
        for impl, (found, odd) in self.results("rollout_metrics", arguments, returned.numbers):
            headlines = None if is_verbose else returned.headlines(impl.plugin)
            numbers |= found if headlines is None else _some(found, headlines)
            if odd:
                self.failed(impl.plugin, "rollout_metrics", TypeError(f"not numbers: {', '.join(odd)}"))
        return numbers

    @property
    def is_verbose(self) -> bool:
        """Whether a plugin wants every number in the log."""
        return any(getattr(plugin, "verbose", False) is True for plugin in self.plugins_with("rollout_metrics"))

    @property
    def headlines(self) -> set[str]:
        """Numbers that the log has only where they are not 0."""
        if self.is_verbose:
            return set()
        return set[str]().union(*(returned.headlines(plugin) or () for plugin in self.plugins_with("rollout_metrics")))

    def trace(self, rollout: Rollout) -> Trace | None:
        """The first `Trace` that a plugin makes of it, as it may leave the process."""
        for impl, trace in self.results("format_trace", {"rollout": rollout}, returned.one(Trace)):
            return trace if type(impl.plugin) is DefaultTrace else filter_trace(self, trace, impl.plugin_name)
        return None

    def hosts(self) -> list[Host]:
        """Adapters of all plugins that have some."""
        return [host for _, hosts in self.results("register_hosts", {}, returned.hosts) for host in hosts]


def _some(numbers: dict[str, float], names: Collection[str]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if name in names}
